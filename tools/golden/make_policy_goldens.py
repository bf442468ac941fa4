#!/usr/bin/env python3
"""Makes tests/golden/policy/golden.json: losses of policy gradients and their derivatives, by verl's own functions.

    python3 tools/golden/make_policy_goldens.py VERL_FOLDER tests/golden/policy

Needs torch and numpy, and a checkout of verl, of which verl/trainer/ppo/core_algos.py and verl/utils/torch_functional.py
alone are read: the functions named below are taken out of them, so that nothing that they import is needed.
Derivatives are torch's, in double.
"""

import ast
import json
import os
import sys
import types
from collections import defaultdict
from typing import Any, Optional

import numpy
import torch

# What verl makes of seq-mean-token-sum-norm has changed with its versions.
AGGREGATIONS = ["token-mean", "seq-mean-token-sum", "seq-mean-token-mean"]


def functions_of(path, names, known):
    """Those functions of a source, as they stand there but for decorators and what types they say."""
    with open(path, encoding="utf-8") as file:
        tree = ast.parse(file.read())
    tree.body = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name in names]
    for function in tree.body:
        function.decorator_list = []
        function.returns = None
        for argument in [*function.args.args, *function.args.kwonlyargs]:
            argument.annotation = None
    found = {"torch": torch, "np": numpy, "defaultdict": defaultdict, "Any": Any, "Optional": Optional, **known}
    exec(compile(tree, path, "exec"), found)
    missing = [name for name in names if name not in found]
    if missing:
        sys.exit(f"{path} has no {', '.join(missing)}")
    return types.SimpleNamespace(**{name: found[name] for name in names})


def numbers(tensor):
    return [float(x) for x in tensor.detach().reshape(-1)]


class Config(dict):
    __getattr__ = dict.__getitem__


def main():
    if len(sys.argv) != 3:
        sys.exit("usage: make_policy_goldens.py VERL_FOLDER FOLDER")
    source, out = sys.argv[1:]
    functional = functions_of(os.path.join(source, "verl/utils/torch_functional.py"),
                              ["masked_sum", "masked_mean", "masked_var", "masked_whiten", "clip_by_value"], {})
    algos = functions_of(
        os.path.join(source, "verl/trainer/ppo/core_algos.py"),
        ["agg_loss", "compute_policy_loss_vanilla", "compute_value_loss", "compute_gae_advantage_return",
         "compute_grpo_outcome_advantage", "kl_penalty", "kl_penalty_forward"],
        {"verl_F": functional, "AlgoConfig": type("AlgoConfig", (), {})})
    torch.manual_seed(3)
    torch.set_default_dtype(torch.float64)
    rows, length = 5, 6
    mask = (torch.rand(rows, length) < 0.75).double()
    mask[2] = 1
    old = -3 * torch.rand(rows, length)
    new = old + 0.6 * torch.randn(rows, length)
    new[0, 0] = old[0, 0] + 2.5
    advantages = torch.randn(rows, length)
    advantages[0, 0], mask[0, 0] = -1.5, 1
    reference = new + 0.8 * torch.randn(rows, length)
    values, rewards = torch.randn(rows, length), torch.randn(rows, length)
    predicted, returns = values + 0.7 * torch.randn(rows, length), torch.randn(rows, length)
    groups, scores = [7, 7, 9, 7, 4], torch.randn(rows)
    golden = {"length": length, "mask": numbers(mask), "old": numbers(old), "new": numbers(new), "advantages":
              numbers(advantages), "reference": numbers(reference), "values": numbers(values), "rewards": numbers(rewards),
              "predicted": numbers(predicted), "returns": numbers(returns), "groups": groups, "scores": numbers(scores)}

    def loss_of(function, at):
        leaf = at.clone().requires_grad_()
        loss = function(leaf)
        loss.backward()
        return {"loss": float(loss.detach()), "derivatives": numbers(leaf.grad)}

    golden["policy"] = []
    for mode in AGGREGATIONS:
        for low, high, dual in [(0.2, 0.2, 3.0), (0.2, 0.28, 10.0), (0.1, 0.3, 1.5)]:
            config = Config(clip_ratio=low, clip_ratio_low=low, clip_ratio_high=high, clip_ratio_c=dual,
                            global_batch_info={})
            kept = {}

            def policy(leaf):
                loss, told = algos.compute_policy_loss_vanilla(old, leaf, advantages, mask, mode, config)
                kept.update(told)
                return loss

            entry = loss_of(policy, new)
            golden["policy"].append({"mode": mode, "low": low, "high": high, "dual": dual, **entry,
                                     "clipped": kept["actor/pg_clipfrac"], "dual_clipped": kept["actor/pg_clipfrac_lower"]})
    golden["kl"] = [{"name": name, **loss_of(
        lambda leaf, name=name: algos.agg_loss(algos.kl_penalty(leaf, reference, name), mask, "token-mean"), new)}
                    for name in ("k1", "abs", "k2", "k3")]
    golden["value"] = [{"clip": clip, **loss_of(
        lambda leaf, clip=clip: algos.compute_value_loss(leaf, returns, values, mask, clip, "token-mean")[0], predicted)}
                       for clip in (0.2, 0.5)]
    golden["gae"] = []
    for gamma, lam in [(1.0, 1.0), (1.0, 0.95), (0.97, 0.9)]:
        whitened, of_values = algos.compute_gae_advantage_return(rewards, values, mask, gamma, lam)
        golden["gae"].append({"gamma": gamma, "lambda": lam, "whitened": numbers(whitened * mask),
                              "returns": numbers(of_values * mask)})
    golden["grpo"] = []
    for divides in (True, False):
        per_token = torch.zeros(rows, length)
        per_token[:, -1] = scores
        told, _ = algos.compute_grpo_outcome_advantage(per_token, torch.ones(rows, length), numpy.array(groups),
                                                       norm_adv_by_std_in_grpo=divides)
        golden["grpo"].append({"divides": divides, "advantages": numbers(told[:, 0])})
    os.makedirs(out, exist_ok=True)
    with open(os.path.join(out, "golden.json"), "w", encoding="utf-8") as file:
        json.dump(golden, file)
        file.write("\n")


main()
