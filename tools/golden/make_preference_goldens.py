#!/usr/bin/env python3
"""Makes tests/golden/preference/golden.json: losses of preference stages and their derivatives, by TRL's own functions.

    build/peers/trl/bin/python tools/golden/make_preference_goldens.py tests/golden/preference

Needs TRL 0.24 (tools/peers/requirements-trl.txt). The trainers' methods are called without trainers; derivatives by the
policy's log-probabilities are torch's, in double.
"""

import json
import os
import sys
import types

import torch
from trl import CPOTrainer, DPOTrainer, KTOTrainer, ORPOTrainer

COUNT = 24


class Accelerator:
    device = torch.device("cpu")

    @staticmethod
    def gather_for_metrics(value):
        return value


def numbers(tensor):
    return [float(x) for x in tensor.detach().reshape(-1)]


def trainer(**settings):
    from trl.trainer.dpo_config import FDivergenceType

    return types.SimpleNamespace(accelerator=Accelerator(), reference_free=False, is_encoder_decoder=False,
                                 f_divergence_type=FDivergenceType.REVERSE_KL, f_divergence_params=None,
                                 f_alpha_divergence_coef=1.0, use_weighting=False, alpha=0.0, **settings)


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: make_preference_goldens.py FOLDER")
    torch.manual_seed(7)
    torch.set_default_dtype(torch.float64)
    chosen, rejected = -0.1 - 5 * torch.rand(COUNT), -0.1 - 5 * torch.rand(COUNT)
    chosen_reference, rejected_reference = -0.1 - 5 * torch.rand(COUNT), -0.1 - 5 * torch.rand(COUNT)
    golden = {"chosen": numbers(chosen), "rejected": numbers(rejected), "chosen_reference": numbers(chosen_reference),
              "rejected_reference": numbers(rejected_reference), "pairs": []}

    def pair(name, of_pairs, **settings):
        c, r = chosen.clone().requires_grad_(), rejected.clone().requires_grad_()
        losses = of_pairs(trainer(**settings), c, r)
        losses.sum().backward()
        golden["pairs"].append({"loss": name, **settings, "losses": numbers(losses), "by_chosen": numbers(c.grad),
                                "by_rejected": numbers(r.grad)})

    def dpo(name):
        return lambda self, c, r: DPOTrainer.dpo_loss(self, c, r, chosen_reference, rejected_reference, name)[0]

    for beta in (0.1, 0.7):
        pair("sigmoid", dpo("sigmoid"), beta=beta, label_smoothing=0.0)
        pair("sigmoid", dpo("sigmoid"), beta=beta, label_smoothing=0.3)
        pair("hinge", dpo("hinge"), beta=beta, label_smoothing=0.0)
        pair("ipo", dpo("ipo"), beta=beta, label_smoothing=0.0)
        # The SFT part is the mean log-probability of the chosen answer.
        pair("orpo", lambda self, c, r: -c - ORPOTrainer.odds_ratio_loss(self, c, r)[0], beta=beta, label_smoothing=0.0)
        pair("simpo", lambda self, c, r: CPOTrainer.cpo_loss(self, c, r)[0], beta=beta, label_smoothing=0.0,
             loss_type="simpo", simpo_gamma=0.5)

    golden["kto"] = []
    other = -0.1 - 5 * torch.rand(COUNT)
    for beta in (0.1, 0.7):
        c, r = chosen.clone().requires_grad_(), rejected.clone().requires_grad_()
        self = trainer(beta=beta, desirable_weight=1.2, undesirable_weight=0.8, calculate_KL=True, loss_type="kto")
        losses, _, _, drift = KTOTrainer.kto_loss(self, c, r, other, chosen_reference, rejected_reference, other - 0.4)
        losses.sum().backward()
        golden["kto"].append({"beta": beta, "chosen_weight": 1.2, "rejected_weight": 0.8, "drift": float(drift),
                              "losses": numbers(losses), "by_chosen": numbers(c.grad), "by_rejected": numbers(r.grad)})
    os.makedirs(sys.argv[1], exist_ok=True)
    with open(os.path.join(sys.argv[1], "golden.json"), "w", encoding="utf-8") as file:
        json.dump(golden, file)
        file.write("\n")


main()
