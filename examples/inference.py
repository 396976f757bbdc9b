"""An eval graph beside a train graph, on the same weights.

    python -m examples.inference

The two graphs hold one module. Nothing is copied between them: the train graph updates the
module's own tensors, and the eval graph reads them at its next call. `model.train()` and
`model.eval()` choose the behaviour of dropout and batch norm, as they do without a graph.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import torchgraph as tg
from examples.data import digits


class TrainGraph(tg.Graph):
    """Forward, backward and the optimizer's step."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        super().__init__()
        self.model = model
        self.add_optimizer(optimizer)

    def build(self, images: Tensor, labels: Tensor) -> Tensor:
        loss = F.cross_entropy(self.model(images), labels)
        loss.backward()
        return loss


class EvalGraph(tg.Graph):
    """Forward alone. It may return any tree of tensors; here, a dict."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def build(self, images: Tensor) -> dict[str, Tensor]:
        logits = self.model(images)
        return {"logits": logits, "digit": logits.argmax(1)}


@dataclass(frozen=True)
class Result:
    """Test accuracy before training and after each epoch; whether eager agrees at the end."""

    accuracies: list[float]
    equal_to_eager: bool


def make_model() -> nn.Module:
    """A small convolutional network with batch norm and dropout."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(32 * 4 * 4, 10),
    )


def main(argv: Sequence[str] | None = None) -> Result:
    """Train for some epochs and test after each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--limit", type=int, default=None, help="use only so many images")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)

    torch.manual_seed(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    data = digits(size=16, seed=args.seed, limit=args.limit)
    test_images, test_labels = data.test_images.to(device), data.test_labels.to(device)

    model = make_model().to(device)
    train = TrainGraph(model, torch.optim.AdamW(model.parameters(), lr=args.lr))
    evaluate = EvalGraph(model)

    def test_accuracy() -> float:
        model.eval()
        found = evaluate(test_images)["digit"]
        model.train()
        return (found == test_labels).float().mean().item()

    accuracies = [test_accuracy()]
    print(f"before training  accuracy {accuracies[-1]:.1%}")
    for epoch in range(args.epochs):
        order = torch.randperm(len(data.train_labels))
        for batch in order.split(args.batch_size):
            train(data.train_images[batch].to(device), data.train_labels[batch].to(device))
        accuracies.append(test_accuracy())
        print(f"after epoch {epoch + 1}    accuracy {accuracies[-1]:.1%}")

    model.eval()
    with torch.no_grad():
        eager = model(test_images)
    graph = evaluate(test_images)["logits"]
    # Bitwise on the CPU; on a GPU two runs of one convolution may differ in the last bits.
    equal = torch.equal(eager, graph) if device.type == "cpu" else torch.allclose(eager, graph)
    print(f"the eval graph and the eager model agree: {equal}")
    return Result(accuracies, equal)


if __name__ == "__main__":
    main()
