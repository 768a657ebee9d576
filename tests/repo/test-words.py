"""The engine's sentences that the window knows by their form (app/quire-words.c) are still what engine and kernels say. TAP.
    test-words.py SOURCE"""
import pathlib
import re
import sys

root = pathlib.Path(sys.argv[1])


def plain(text):
    """Adjacent literals as one, each conversion as %s."""
    text = re.sub(r'"\s*(?:PRI\w+|G_G\w+FORMAT)\s*"', "s", text)
    text = re.sub(r'"\s*(?:PRI\w+|G_G\w+FORMAT)(?=\s*[,)])', 's"', text)
    text = re.sub(r'(?<!\\)"\s*"', "", text)
    return re.sub(r"%[-+ #0-9.*]*(?:ll|l|z|h)?[a-zA-Z]", "%s", text)


said = "\n".join(plain(p.read_text()) for folder in ("engine", "kernels") for p in sorted((root / folder).rglob("*"))
                 if p.suffix in (".c", ".cu", ".h"))
table = re.search(r"forms\[\] = \{(.*?)\n  NULL,", (root / "app" / "quire-words.c").read_text(), re.S).group(1)
forms = re.findall(r'N_ \("((?:[^"\\]|\\.)*)"\)', re.sub(r'"\s*\n\s*"', "", table))
bad = [f for f in forms if f not in said and not (f.endswith(": %s") and f[:-4] in said)]
for form in bad:
    print("# nobody says: " + form)
print(f"{'not ok' if bad or len(forms) < 30 else 'ok'} 1 - {len(forms)} forms are said")
gone = "The device was mislaid: %s" in said
print(f"{'not ok' if gone else 'ok'} 2 - what nobody says is noticed")
print("1..2")
sys.exit(bool(bad or gone))
