#!/usr/bin/env bash
# lightning 2.6.6 with torch 2.13.0: torch.compile(LightningModule) cannot train a module whose
# training_step calls self.log.
#
# A good guess: Lightning documents torch.compile(model) before trainer.fit, nearly every
# training_step logs, and what Dynamo cannot follow becomes a graph break. Seen: the first step ends
# in InternalTorchDynamoError ("'method' object has no attribute '__dict__'"), raised where log asks
# inspect.getfullargspec about the bound training_step. Without the call of self.log the same module
# trains; so does one of which only the torch model inside of it is compiled.
#
# Output: what became of the three, then "as stated".
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0
"$folder/venv/bin/pip" install --quiet torch==2.13.0 lightning==2.6.6
cd "$folder"
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
import logging

import lightning as L
import torch
from torch.utils.data import DataLoader, TensorDataset

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Net(L.LightningModule):
    def __init__(self, logs):
        super().__init__()
        self.layer, self.logs = torch.nn.Linear(4, 2), logs

    def training_step(self, batch, batch_idx):
        loss = self.layer(batch[0]).square().mean()
        if self.logs:
            self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


def outcome(module):
    data = DataLoader(TensorDataset(torch.randn(8, 4)), batch_size=4)
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    try:
        trainer.fit(module, data)
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return "trained"


print("torch", torch.__version__, "lightning", L.__version__)
inside = Net(logs=True)
inside.layer = torch.compile(inside.layer)
found = {
    "compiled, no log": outcome(torch.compile(Net(logs=False))),
    "compiled, log": outcome(torch.compile(Net(logs=True))),
    "model inside compiled, log": outcome(inside),
}
for name, what in found.items():
    print(f"{name}: {what}")
assert found["compiled, no log"] == found["model inside compiled, log"] == "trained"
assert found["compiled, log"].startswith("InternalTorchDynamoError: AttributeError: 'method'")
print("as stated")
PYTHON
