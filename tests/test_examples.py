"""Every example runs, with a small setting, and does what it says."""

import json
from pathlib import Path

import pytest
import torch

import torchgraph as tg
from examples import char_gpt, huggingface, inference, linear, mobilenet_v2, style_transfer

SMALL_MOBILENET = "--epochs 2 --batch-size 16 --limit 80 --width 0.25 --device cpu"
SMALL_GPT = (
    "--steps 30 --batch-size 8 --block-size 32 --layers 2 --width 32 --lr 1e-2 "
    "--characters 20000 --generate 40"
)
SMALL_LLAMA = "--steps 20 --batch-size 4 --length 32 --width 32 --lr 1e-2 --bytes 20000"


def test_linear_fits_the_sine():
    result = linear.main(["--steps", "2000"])

    assert result.losses[-1] < 12  # the best cubic has 8.8
    assert result.losses[-1] < result.losses[0] / 10
    assert result.coefficients == pytest.approx([0.85, 0.0, -0.09], abs=0.05)


def test_linear_is_the_eager_loop():
    losses = linear.main(["--steps", "20"]).losses

    torch.manual_seed(0)
    x = torch.linspace(-torch.pi, torch.pi, 2000)
    xx = x.unsqueeze(-1).pow(torch.tensor([1, 2, 3]))
    model = torch.nn.Sequential(torch.nn.Linear(3, 1), torch.nn.Flatten(0, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    for loss in losses:
        optimizer.zero_grad()
        expected = torch.nn.functional.mse_loss(model(xx), torch.sin(x), reduction="sum")
        expected.backward()
        optimizer.step()
        assert loss == expected.item()


def test_mobilenet_v2_equals_eager_and_resumes(tmp_path: Path):
    checkpoint = tmp_path / "new" / "checkpoint.pt"
    result = mobilenet_v2.main([*SMALL_MOBILENET.split(), "--checkpoint", str(checkpoint)])

    assert checkpoint.exists()
    assert result.training.steps == 8
    assert result.training.equal_steps == 8
    assert result.training.equal_state
    assert result.training.same
    assert result.resuming.steps == 4
    assert result.resuming.equal_steps == 4
    assert result.resuming.equal_state
    assert result.accuracy == result.eager_accuracy
    assert not result.passed  # two epochs on 64 images do not reach the accuracy wanted


@pytest.mark.slow
def test_mobilenet_v2_in_full(tmp_path: Path):
    result = mobilenet_v2.main(["--device", "cpu", "--checkpoint", str(tmp_path / "checkpoint.pt")])

    assert result.passed


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_mobilenet_v2_on_a_gpu(tmp_path: Path):
    result = mobilenet_v2.main(
        ["--device", "cuda", "--checkpoint", str(tmp_path / "checkpoint.pt")]
    )

    assert result.passed


def test_char_gpt_learns_and_writes():
    result = char_gpt.main(SMALL_GPT.split())

    assert sum(result.losses[-5:]) / 5 < result.losses[0] - 0.5
    assert result.tokens_per_second > 0
    assert result.text.startswith("def ")
    assert len(result.text) == len("def ") + 40  # longer than the block: the window slid


def test_inference_shares_the_weights():
    result = inference.main(["--epochs", "3", "--limit", "500"])

    assert len(result.accuracies) == 4
    assert result.accuracies[-1] > 0.8
    assert result.accuracies[-1] > result.accuracies[0]
    assert result.equal_to_eager


def test_style_transfer_writes_a_directory_to_deploy(tmp_path):
    weights = tmp_path / "weights"
    tg.save(style_transfer.TransformNet().state_dict(), weights)
    folder = tmp_path / "1"
    result = style_transfer.main([str(folder), "--size", "16", "--weights", str(weights)])

    assert result.files == ["model.json", "model.pt2"]
    assert result.difference < 1e-3  # of 255
    about = json.loads((folder / "model.json").read_text())
    assert about["input"]["image"]["shape"] == ["batch", 3, 16, 16]


def test_style_transfer_runs_in_onnxruntime(tmp_path):
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    style_transfer.main([str(tmp_path), "--size", "16", "--onnx"])

    images = torch.rand(2, 3, 16, 16) * 255.0
    served = torch.export.load(tmp_path / "model.pt2").module()
    session = runtime.InferenceSession(str(tmp_path / "model.onnx"))
    (styled,) = session.run(None, {"image": images.numpy()})
    torch.testing.assert_close(torch.from_numpy(styled), served(images), rtol=1e-5, atol=5e-3)


def test_huggingface_learns():
    result = huggingface.main(SMALL_LLAMA.split())

    assert sum(result.losses[-5:]) / 5 < result.losses[0] - 1.0
    assert result.tokens_per_second > 0


def test_an_example_needs_no_arguments():
    for example in (char_gpt, huggingface, inference, linear, mobilenet_v2, style_transfer):
        with pytest.raises(SystemExit) as stopped:
            example.main(["--help"])
        assert stopped.value.code == 0
