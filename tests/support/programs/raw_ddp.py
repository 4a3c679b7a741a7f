"""DistributedDataParallel in a loop of its own."""

import json
import os
from pathlib import Path

import disturbance
import torch
import torch.distributed as dist

FOLDER = Path(os.environ["DISTTRAIN_CHECKPOINT_DIR"])
STEPS = 20

dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
first = 0
if (FOLDER / "state.pt").exists():
    saved = torch.load(FOLDER / "state.pt")
    model.load_state_dict(saved["model"])
    first = saved["step"]
for step in range(first + 1, STEPS + 1):
    disturbance.at(step)
    inputs = torch.randn(4, 8)
    loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 5 == 0 and dist.get_rank() == 0:
        torch.save({"model": model.state_dict(), "step": step}, FOLDER / "new")
        (FOLDER / "new").replace(FOLDER / "state.pt")
if dist.get_rank() == 0:
    Path("raw_ddp.json").write_text(json.dumps({"first": first, "step": step, "loss": loss.item()}))
dist.destroy_process_group()
