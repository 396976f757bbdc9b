"""OneFlow's public scripts: where they lie, how they are called, what they print."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from . import synthetic
from .running import ROOT

MODELS = "TORCHGRAPH_ONEFLOW_MODELS"
"""A variable that names a checkout of https://github.com/Oneflow-Inc/models."""


def checkout(variable: str) -> Path | None:
    """A folder that a variable of the environment names."""
    found = os.environ.get(variable)  # noqa: TID251 - where the scripts lie
    return Path(found) if found else None


class Script(NamedTuple):
    """A script and a command line for few and small steps."""

    file: str
    """In the checkout; it runs in the folder that has its modules."""
    folder: str
    arguments: Sequence[str]
    """``{data}`` is where `write` wrote, ``{out}`` is empty."""
    write: Callable[[Path], object]
    loss: str
    """A pattern whose group is a loss."""
    count: int = 20
    """How many there are to be."""
    falls: bool = True
    ends: bool = True
    """Else it is stopped when so many losses were printed."""
    needs: Sequence[str] = ()
    """Packages of its own."""


def _images(folders: Sequence[str]) -> Callable[[Path], object]:
    return lambda root: synthetic.image_records(
        root, folders, classes=10, count=40, side=230, part_count=1
    )


def _bert(root: Path) -> object:
    return synthetic.bert_records(
        root, sequence=32, predictions=5, vocabulary=1000, part_count=4, count=80
    )


def _clicks(root: Path) -> object:
    return synthetic.click_records(
        root, vocabulary=500, dense=13, wide=2, deep=26, part_count=2, count=400
    )


def _tokens(root: Path) -> object:
    return synthetic.indexed_tokens(root / "text", vocabulary=100, documents=400)


def _mnist(root: Path) -> object:
    """60000 pictures; nothing is downloaded where the folder is there."""
    root.mkdir()
    rng = np.random.default_rng(0)
    for name, count in (("train", 60000), ("t10k", 10000)):
        dots = rng.integers(0, 256, (count, 7, 7), dtype=np.uint8)
        pixels = dots.repeat(4, axis=1).repeat(4, axis=2)
        labels = rng.integers(0, 10, count, dtype=np.uint8)
        (root / f"{name}-images-idx3-ubyte").write_bytes(bytes(16) + pixels.tobytes())
        (root / f"{name}-labels-idx1-ubyte").write_bytes(bytes(8) + labels.tobytes())
    return root


def _style(root: Path) -> object:
    synthetic.photographs(root / "photos", 20, side=256)
    return synthetic.photographs(root / "style", 1, side=256)


IMAGE = "Vision/classification/image"
_RESNET = shlex.split(
    "--ofrecord-path {data} --ofrecord-part-num 1 --train-batch-size 4 --val-batch-size 4"
    " --num-epochs 1 --batches-per-epoch 20 --val-batches-per-epoch 2 --warmup-epochs 0"
    " --lr 0.005 --print-interval 1 --save {out}/saved"
)
_BERT = shlex.split(
    "--ofrecord_path {data} --train-dataset-size 160 --train-data-part 4 --train-batch-size 8"
    " --val-batch-size 256 --num_hidden_layers 2 --num_attention_heads 2 --seq_length 32"
    " --max_predictions_per_seq 5 --vocab_size 1000 --max_position_embeddings 64 --lr 5e-3"
    " --loss_print_every_n_iters 1 --checkpoint_path {out}/saved"
)
_GPT = shlex.split(
    "--dataset {data}/text --split 949,50,1 --vocab-size 100 --seq-length 32 --num-layers 2"
    " --hidden-size 64 --num-attention-heads 4 --micro-batch-size 4 --global-batch-size 8"
    " --tensor-model-parallel-size 1 --pipeline-model-parallel-size 1 --num-gpus-per-node 1"
    " --num-nodes 1 --optimizer adamw --weight-decay 1e-2 --clip-grad 1.0 --learning-rate 0.01"
    " --min-lr 1.0e-5 --lr-decay-style cosine --lr-decay-iters 320 --lr-warmup-fraction 0.01"
    " --checkpoint-activations --graph --train-iters 20 --log-interval 1"
)
_AMP = shlex.split("--fp16 --initial-loss-scale 65536 --no-scale-tril-softmax-dropout-fusion")
_CLICKS = shlex.split(
    "--data_dir {data} --data_part_num 2 --data_part_name_suffix_length 5 --batch_size 32"
    " --max_iter 20 --loss_print_every_n_iter 1 --eval_interval 20 --eval_batchs 2"
    " --wide_vocab_size 2000 --deep_vocab_size 2000 --hidden_size 64 --hidden_units_num 2"
    " --model_save_dir {out}/saved --save_model_after_each_eval"
)
_DCGAN = shlex.split("--path {out}/dcgan --data_dir {data} --batch_size 16 -e 1")
_ALEX = shlex.split(
    "--ofrecord_path {data} --train_batch_size 8 --val_batch_size 8 --learning_rate 0.005"
    " --epochs 1 --save_checkpoint_path {out}/saved"
)
_STYLE = shlex.split(
    "train --dataset {data}/photos --style-image {data}/style/0.jpg --save-model-dir {out}/saved"
    " --epochs 1 --cuda 1 --log-interval 1 --lr 0.001 --content-weight 30000 --vgg vgg16"
    " --checkpoint-model-dir {out}/checkpoints --checkpoint-interval 20 --style-log-dir {out}/"
)
SCRIPTS = {
    "resnet50 graph": Script(
        "train.py", f"{IMAGE}/resnet50", [*_RESNET, "--graph"],
        _images(("train", "validation")), r"\[train\].*loss: ([\d.]+)",
    ),
    "resnet50 eager": Script(
        "train.py", f"{IMAGE}/resnet50", _RESNET,
        _images(("train", "validation")), r"\[train\].*loss: ([\d.]+)",
    ),
    "alexnet graph": Script(
        "graph/train.py", f"{IMAGE}/alexnet", _ALEX, _images(("train", "val")),
        r"oneflow loss ([\d.]+)", count=2, falls=False, ends=False,
    ),
    "alexnet eager": Script(
        "eager/train.py", f"{IMAGE}/alexnet", [*_ALEX, "--print_interval", "1"],
        _images(("train", "val")), r"Training Loss: ([\d.]+)", falls=False, ends=False,
    ),
    "bert graph": Script(
        "run_pretraining.py", "NLP/BERT", [*_BERT, "--use_consistent"], _bert,
        r"total_loss: ([\d.]+)", ends=False,  # its evaluation lacks an argument of its own forward
    ),
    "gpt graph": Script(
        "oneflow_gpt/train.py", "GPT", _GPT, _tokens, r"samples.*loss: ([\d.]+)",
    ),
    "gpt graph, amp": Script(
        "oneflow_gpt/train.py", "GPT",
        [*_GPT, *_AMP],
        _tokens, r"samples.*loss: ([\d.]+)",
    ),
    "wide_and_deep graph": Script(
        "train.py", "RecommenderSystems/wide_and_deep", [*_CLICKS, "--execution_mode", "graph"],
        _clicks, r"iter: .*loss: ([\d.]+)", needs=("sklearn",),
    ),
    "wide_and_deep eager": Script(
        "train.py", "RecommenderSystems/wide_and_deep",
        [*_CLICKS, "--execution_mode", "eager", "--batch_size_per_proc", "32"],
        _clicks, r"iter: .*loss: ([\d.]+)", needs=("sklearn",),
    ),
    "dcgan graph": Script(
        "graph/train.py", "Vision/gan/DCGAN", _DCGAN, _mnist, r"d_loss:([\d.]+)",
        count=1, falls=False, ends=False, needs=("imageio", "matplotlib"),
    ),
    "dcgan eager": Script(
        "eager/train.py", "Vision/gan/DCGAN", _DCGAN, _mnist, r"d_loss:([\d.]+)",
        count=1, falls=False, ends=False, needs=("imageio", "matplotlib"),
    ),
    "fast_neural_style eager": Script(
        "neural_style/neural_style.py", "Vision/style_transform/fast_neural_style", _STYLE, _style,
        r"total: ([\d.]+)", needs=("cv2",),
    ),
}  # fmt: skip


def losses(one: Script, models: Path, tmp_path: Path, timeout: float = 900) -> list[float]:
    """What a script printed as losses until it ended or had printed enough.

    It runs in a copy of its folder: some scripts write beside themselves.
    """
    data, out, here = tmp_path / "data", tmp_path / "out", tmp_path / "script"
    one.write(data)
    out.mkdir()
    shutil.copytree(models / one.folder, here)
    if "vgg16" in one.arguments:
        _random_vgg(here)
    given = [text.format(data=data, out=out) for text in one.arguments]
    process = subprocess.Popen(
        [sys.executable, "-m", "torchgraph.oneflow", "--cpu", one.file, *given],
        cwd=here,
        env={
            **os.environ,  # noqa: TID251 - for a child
            "PYTHONPATH": os.pathsep.join((str(ROOT), str(here), *sys.path)),
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    found, lines, end = [], [], time.monotonic() + timeout
    assert process.stdout is not None
    with process:
        for line in process.stdout:
            lines.append(line)
            found += [float(loss) for loss in re.findall(one.loss, line)]
            if time.monotonic() > end or (len(found) >= one.count and not one.ends):
                process.kill()
    said = "".join(lines)[-6000:]
    assert len(found) >= one.count, said
    assert process.returncode in (0, -9), said
    return found


_VGG = """
import os, sys
sys.path.insert(0, "neural_style")
import oneflow as flow
from vgg import vgg16
os.makedirs("vgg_imagenet_pretrain_model")
state = vgg16().state_dict()
flow.save(state, "vgg_imagenet_pretrain_model/vgg16_oneflow_model", save_as_external_data=True)
"""


def _random_vgg(here: Path) -> None:
    """The checkpoint that the script loads, in OneFlow's form, with random values."""
    (here / "make_vgg.py").write_text(_VGG)
    subprocess.run(
        [sys.executable, "-m", "torchgraph.oneflow", "--cpu", "make_vgg.py"],
        cwd=here,
        env={**os.environ, "PYTHONPATH": str(ROOT)},  # noqa: TID251 - for a child
        check=True,
    )
