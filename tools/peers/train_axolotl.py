"""Axolotl's own training of a run file, recorded: train_axolotl.py RUN.yaml RESULTS [OPTION…]

Everything that decides a loss is Axolotl's: this calls the function of `python -m axolotl.cli.train RUN.yaml`, looks
at the micro-batches that its trainer is given, and at the figures that it logs (logging_steps: 1), before they are
rounded. RESULTS gets a JSON list: of every step its loss, gradient norm, learning rate and tokens without padding.

Two options leave out what Axolotl does and Troupe does not, to see whether that is the whole difference:

--mask-first-labels  no first token of a sample is a target. Axolotl has the last token of the sample before it, which
                     sees nothing of it, predict it.
--step-mean          a step's loss is the mean over its targets, which is transformers' rule, and was Axolotl's until
                     0.16: since 0.17 its trainer takes the rule back (model_accepts_loss_kwargs), and a step is the
                     mean of its micro-batches' means.
"""

import json
import sys

from axolotl.cli.train import do_cli
from axolotl.core.trainers.base import AxolotlTrainer


def main():
    run_file, results, *options = sys.argv[1:]
    # do_cli reads the rest of the command line itself.
    sys.argv = sys.argv[:1]
    steps, tokens = [], []
    made, training_step, log = AxolotlTrainer.__init__, AxolotlTrainer.training_step, AxolotlTrainer.log

    def make(trainer, *rest, **more):
        made(trainer, *rest, **more)
        if "--step-mean" in options:
            trainer.model_accepts_loss_kwargs = True

    def look_at_micro_batch(trainer, model, inputs, *rest, **more):
        tokens.append(int((inputs["input_ids"] != trainer.processing_class.pad_token_id).sum()))
        return training_step(trainer, model, inputs, *rest, **more)

    def look_at_log(trainer, logs, *rest, **more):
        if "loss" in logs:
            steps.append({"step": trainer.state.global_step, "loss": logs["loss"], "tokens": sum(tokens),
                          "grad_norm": float(logs["grad_norm"]), "learning_rate": logs["learning_rate"]})
            tokens.clear()
        return log(trainer, logs, *rest, **more)

    AxolotlTrainer.__init__, AxolotlTrainer.training_step, AxolotlTrainer.log = make, look_at_micro_batch, look_at_log
    if "--mask-first-labels" in options:
        mask_first_labels()
    do_cli(run_file)
    with open(results, "w", encoding="utf-8") as file:
        json.dump(steps, file)


def mask_first_labels():
    """Where a batch is collated: what counts the step's targets sees it, too."""
    from axolotl.utils.collators import V2BatchSamplerDataCollatorForSeq2Seq

    collate = V2BatchSamplerDataCollatorForSeq2Seq.__call__

    def masked(collator, *rest, **more):
        batch = collate(collator, *rest, **more)
        batch["labels"][batch["position_ids"] == 0] = -100
        return batch

    V2BatchSamplerDataCollatorForSeq2Seq.__call__ = masked


# Processes that it starts load this file again.
if __name__ == "__main__":
    main()
