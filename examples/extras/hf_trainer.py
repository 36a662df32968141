"""Hugging Face's Trainer on GPT-2's architecture: DovetailTrainer in place of Trainer, all else as it was.

Needs `pip install 'dovetail[accelerate]'`.
Run: torchrun --standalone --nproc-per-node 2 examples/extras/hf_trainer.py
"""

from __future__ import annotations

import tempfile

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from dovetail.integrations.transformers import DovetailTrainer

WORDS, LENGTH = 64, 16


class Counting(Dataset):
    """Sequences that count upwards from some word."""

    def __len__(self) -> int:
        return 512

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        words = (torch.arange(LENGTH) + 7 * index) % WORDS
        return {"input_ids": words, "labels": words}


def main(kind: type[Trainer] = DovetailTrainer) -> tuple[list[float], dict[str, torch.Tensor]]:
    torch.manual_seed(1)
    sizes = {"vocab_size": WORDS, "n_positions": LENGTH, "n_embd": 32, "n_layer": 2, "n_head": 2}
    model = GPT2LMHeadModel(
        GPT2Config(**sizes, bos_token_id=0, eos_token_id=0, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)
    )
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            use_cpu=True,
            per_device_train_batch_size=8,
            gradient_accumulation_steps=2,
            max_steps=20,
            learning_rate=5e-3,
            logging_steps=1,
            logging_nan_inf_filter=False,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            seed=1,
        )
        trainer = kind(model=model, args=arguments, train_dataset=Counting())
        trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    if trainer.is_world_process_zero():
        print(f"loss {float(losses[0]):.3f} -> {float(losses[-1]):.3f}", flush=True)
    return [float(loss) for loss in losses], {n: v.detach().clone() for n, v in model.state_dict().items()}


if __name__ == "__main__":
    main()
