# Builds and installs the CUDA extension of the Quire that flatpak/build has just installed. Sourced by it.
# shellcheck shell=bash disable=SC2154
cuda=${CUDA:-/usr/local/cuda}
archs=${GPU_ARCHS:-89}
file=$id.Cuda.yml
if [ "$remote" = standin ]; then
    [ -x "$cuda/bin/nvcc" ] || skip "no CUDA Toolkit in $cuda"
    # The toolkit as NVIDIA's archives lay it out, in the place of the archives.
    me mkdir -p "$scratch/cuda/lib"
    tar -c -h -C "$cuda" bin include nvvm lib64/libcudart_static.a lib64/libcudadevrt.a lib64/libcublasLt.so.13 |
        "${as[@]}" tar -x -C "$scratch/cuda" --no-same-owner --transform 's#^lib64/#lib/#'
    licence=$(find "$cuda/" -ipath '*cublas*licen[cs]e*' -type f | head -1)
    [ -n "$licence" ] || licence=$(find "$cuda/" -maxdepth 1 -iname '*EULA*' -o -maxdepth 1 -iname '*licen[cs]e*' | head -1)
    cat "${licence:-/dev/null}" | me tee "$scratch/cuda/LICENSE" >/dev/null
    awk -v dir="$scratch/cuda" '
        /type: archive/ { if (!done++) print "      - type: dir\n        path: " dir; drop = 1; next }
        drop && /^ *(url|sha256):/ { next }
        { drop = 0; print }' "$scratch/src/flatpak/$file" | sed "s/-Dcuda=enabled/& -Dgpu_archs=$archs/" |
        me tee "$scratch/src/flatpak/standin-cuda.yml" >/dev/null
    file=standin-cuda.yml
    say "the module holds machine code for $archs alone"
fi
begun=$SECONDS
builder "$file" "$scratch/build-cuda" "$out/cuda.log"
say "extension built in $((SECONDS - begun)) s"
me flatpak install --user -y --noninteractive quire "runtime/$id.Cuda/x86_64/$branch" >/dev/null
me flatpak build-bundle --runtime "$repo" "$scratch/$id.Cuda.flatpak" "$id.Cuda" "$branch"
cp "$scratch/$id.Cuda.flatpak" "$out/$id.Cuda-$branch.flatpak"
folder=$home/.local/share/flatpak/runtime/$id.Cuda/x86_64/$branch/active/files
say "extension: $(du -m "$scratch/$id.Cuda.flatpak" | cut -f1) MiB to download, $(du -sLm "$folder" | cut -f1) MiB installed"
ls -l "$folder"
# The application finds the module there; without a driver it says that, and not that the module is missing.
seen=$(me flatpak run --user --command=quire-cli "$id" info --json | python3 -c "import json,sys
for b in json.load(sys.stdin)['backends']:
    if b['name'] == 'cuda': print(b.get('device') or b['reason'])")
say "the engine: $seen"
case $seen in *module*) say "the module is not found"; exit 1 ;; esac
found=$(me flatpak run --user --command=sh "$id" -c 'ldconfig -p | grep -c libcublasLt.so.13' || true)
[ "$found" = 1 ] || { say "cuBLASLt is not found by its name"; exit 1; }
