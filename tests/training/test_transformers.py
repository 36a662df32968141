"""Hugging Face models from a small config on two ranks: clipping, accumulation, `auto`, with DDP's losses."""

from __future__ import annotations

import contextlib
import io
from typing import Any

import pytest
import torch
from harness import ranks
from networks import same, same_state
from torch import nn

from dovetail.training import distribute, no_sync, shutdown

pytest.importorskip("transformers")

STEPS = 20
SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}


def _gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_layer=2, n_head=2, n_embd=32, vocab_size=64, n_positions=16, bos_token_id=1, eos_token_id=2)
    return GPT2LMHeadModel(config)  # type: ignore[no-any-return]


def _bert() -> nn.Module:
    from transformers import BertConfig, BertForMaskedLM

    return BertForMaskedLM(BertConfig(vocab_size=64, **SMALL))  # type: ignore[no-any-return]


MODELS = {"gpt2": _gpt2, "bert": _bert}


def _train(model: nn.Module, call: Any, optimizer: torch.optim.Optimizer, quiet: Any, rank: int) -> list[float]:
    """Dropout is on: both sides draw the same numbers, so dovetail may draw none."""
    torch.manual_seed(rank)
    data = torch.Generator().manual_seed(rank)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 5))
    losses = []
    model.train()
    for _ in range(STEPS):
        optimizer.zero_grad()
        words = torch.randint(64, (2, 4, 12), generator=data)
        with quiet():
            (call(input_ids=words[0], labels=words[0]).loss / 2).backward()
        loss = call(input_ids=words[1], labels=words[1]).loss / 2
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        schedule.step()
        losses += [loss.item(), norm.item()]
    return losses


def compare(rank: int, size: int) -> tuple[dict[tuple[str, str], str], str]:
    """Of each model and policy the difference from DDP, or an empty string; and what was printed."""
    torch.set_num_threads(1)
    outcome, printed = {}, io.StringIO()
    for name, build in MODELS.items():
        torch.manual_seed(7)
        reference = build()
        adamw = torch.optim.AdamW(reference.parameters(), lr=1e-2)
        ddp = nn.parallel.DistributedDataParallel(reference, find_unused_parameters=name == "bert")
        wanted = _train(reference, ddp, adamw, ddp.no_sync, rank)
        for policy in ("p3", "auto"):
            torch.manual_seed(7 + rank)  # rank 0's weights count
            model = build()
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
            distribute(model, optimizer, policy=policy, update="worker")
            try:
                with contextlib.redirect_stderr(printed):
                    found = _train(model, model, optimizer, lambda m=model: no_sync(m), rank)
                assert wanted == found, f"{wanted[-4:]} and {found[-4:]}"
                same(reference.state_dict(), model.state_dict())
                same_state(adamw, optimizer)
                outcome[name, policy] = ""
            except AssertionError as error:
                outcome[name, policy] = str(error) or "differs"
            finally:
                shutdown(model)
    return outcome, printed.getvalue()


def test_transformers_train_as_under_ddp() -> None:
    with ranks(2, compare, gloo=True) as group:
        (zero, said), (one, _) = group.results(150)
    assert zero == one == {(name, policy): "" for name in MODELS for policy in ("p3", "auto")}
    assert said.count("dovetail: auto keeps ") == 2, "twenty steps are enough to decide"
