#!/bin/sh
# Machine code that was compiled with the image goes where more can be written: numba reads no folder that it can't
# write to. Where there is none, all is compiled again at every start, which takes a minute or two and does no other harm.
if ! { mkdir -p "$NUMBA_CACHE_DIR" && cp -R /opt/speculant/kernels/. "$NUMBA_CACHE_DIR"; } 2>/dev/null; then
    echo "speculant: can't write to $NUMBA_CACHE_DIR, so kernels are compiled at every start; mount a volume there" >&2
fi
exec speculant "$@"
