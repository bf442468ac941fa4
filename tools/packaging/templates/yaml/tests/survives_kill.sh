#!/bin/sh
# A rank is killed in the middle of the training: the weights are those of the undisturbed run, to the bit.
set -eu
cd "$(dirname "$0")/.."
troupe train train.yaml output_dir=out/quiet > out-quiet.log 2>&1 || { cat out-quiet.log; exit 1; }
troupe train train.yaml output_dir=out/struck --chaos kill@rank=1,step=15 > out-struck.log 2>&1 || { cat out-struck.log; exit 1; }
grep -q "killed" out-struck.log || { echo "nothing was killed"; cat out-struck.log; exit 1; }
cmp out/quiet/model.safetensors out/struck/model.safetensors
troupe why out/struck
echo "the same weights, to the bit"
