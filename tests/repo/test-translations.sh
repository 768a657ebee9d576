#!/usr/bin/env bash
# Every language of po/LINGUAS says all that the sources say: nothing missing, nothing fuzzy, formats and mnemonics
# right. Skips where gettext's tools are not installed.
set -u
cd "$(dirname "$0")/../.."
for tool in xgettext msgfmt msgmerge msgattrib msgcomm; do
    command -v "$tool" >/dev/null || { echo "1..0 # SKIP $tool is not installed"; exit 0; }
done
n=0 bad=0
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
# ok NAME FILE: FILE is empty, or has what is wrong.
ok() {
    n=$((n + 1))
    if [ -s "$2" ]; then
        bad=$((bad + 1))
        sed 's/^/# /' "$2"
        echo "not ok $n - $1"
    else
        echo "ok $n - $1"
    fi
}

# The keywords of Meson's preset "glib".
xgettext --from-code=UTF-8 --files-from=po/POTFILES --output="$dir/quire.pot" --add-comments=Translators \
    --keyword=_ --keyword=N_ --keyword=C_:1c,2 --keyword=NC_:1c,2 --keyword=g_dcgettext:2 --keyword=g_dngettext:2,3 \
    --keyword=g_dpgettext2:2c,3 --flag=N_:1:pass-c-format --flag=C_:2:pass-c-format --flag=NC_:2:pass-c-format \
    --flag=g_dngettext:2:pass-c-format --flag=g_strdup_printf:1:c-format --flag=g_string_append_printf:2:c-format \
    --flag=g_print:1:c-format --flag=g_printerr:1:c-format 2>"$dir/xgettext"
ok "the messages are read" "$dir/xgettext"

# po/POTFILES names every source that marks a message.
grep -rlE '(^|[^A-Za-z0-9_])(_|N_|C_|NC_|ngettext) \(' app --include='*.c' | sort >"$dir/marked"
sort po/POTFILES >"$dir/listed"
comm -23 "$dir/marked" "$dir/listed" >"$dir/unlisted"
ok "po/POTFILES lists all sources with messages" "$dir/unlisted"

messages() { msgattrib --no-wrap --no-location "$@" 2>/dev/null | grep -E '^(msgctxt|msgid) ' | grep -vx 'msgid ""'; }
# check PO NAME
check() {
    local po=$1 name=$2
    msgfmt --check --check-accelerators=_ --output-file=/dev/null "$po" 2>"$dir/format"
    ok "$name: formats, header and mnemonics" "$dir/format"
    msgmerge --quiet --no-fuzzy-matching "$po" "$dir/quire.pot" --output-file="$dir/merged.po" 2>"$dir/merge" || ok "$name: merges" "$dir/merge"
    messages --untranslated --no-obsolete "$dir/merged.po" >"$dir/missing"
    ok "$name: nothing is missing" "$dir/missing"
    messages --only-fuzzy "$dir/merged.po" >"$dir/fuzzy"
    ok "$name: nothing is fuzzy" "$dir/fuzzy"
}
while read -r lang; do
    check "po/$lang.po" "$lang"
done <po/LINGUAS

# In Chinese no sentence ends, breaks or asks in half-width punctuation.
msgattrib --no-wrap po/zh_CN.po | grep -E '^msgstr' | grep -P '\p{Han}["”）]?[,;:?!(]|[,;:?!]\p{Han}|\p{Han}\.(?!\.)' \
    | grep -vP '\(_[A-Z]\)|"chat;ai;' >"$dir/half"
ok "zh_CN: punctuation is full-width" "$dir/half"

# The check itself must notice what is missing, and a format that is another one.
{ head -n 17 po/de.po; printf '\n#, c-format\nmsgid "%%s is unloaded."\nmsgstr "%%d wird entladen."\n'; } >"$dir/poor.po"
(n=0 bad=0; check "$dir/poor.po" poor; echo "$bad bad") >"$dir/poor.log"
if grep -q '^2 bad' "$dir/poor.log"; then : >"$dir/blind"; else cp "$dir/poor.log" "$dir/blind"; fi
ok "a poor translation is noticed" "$dir/blind"
echo "1..$n"
exit $((bad > 0))
