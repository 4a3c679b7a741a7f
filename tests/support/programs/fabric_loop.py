"""A loop with Lightning Fabric."""

from disttrain.integrations import checkpoint_dir, stop_requested

# isort: split
import os

import disturbance
import torch
from lightning import Fabric

PATH = checkpoint_dir() / "state.ckpt"

fabric = Fabric(
    accelerator="cpu",
    strategy="ddp",
    devices=int(os.environ["LOCAL_WORLD_SIZE"]),
    num_nodes=int(os.environ["GROUP_WORLD_SIZE"]),
)
fabric.launch()
model = torch.nn.Linear(8, 1)
model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.01))
state = {"model": model, "optimizer": optimizer, "step": 0}
if PATH.exists():
    fabric.load(PATH, state)
first = state["step"]
for step in range(first + 1, 21):
    disturbance.at(step)
    inputs = torch.randn(4, 8)
    loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    fabric.backward(loss)
    optimizer.step()
    state["step"] = step
    stops = stop_requested()
    if step % 5 == 0 or stops:
        fabric.save(PATH, state)
    if stops:
        raise SystemExit
if fabric.is_global_zero:
    disturbance.finished(first, step, loss.item())
