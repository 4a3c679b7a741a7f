"""A loop in the style of nanoGPT, with its arguments `--out_dir` and `--init_from=resume`."""

import argparse
import os

import disturbance
import torch
import torch.distributed as dist

parser = argparse.ArgumentParser()
parser.add_argument("--out_dir", required=True)
parser.add_argument("--init_from", default="scratch")
args = parser.parse_args()
path = os.path.join(args.out_dir, "ckpt.pt")

dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
iter_num = 0
if args.init_from == "resume":
    checkpoint = torch.load(path)
    model.module.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    iter_num = checkpoint["iter_num"]
first = iter_num
while iter_num < 20:
    disturbance.at(iter_num + 1)
    inputs = torch.randn(4, 8)
    loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    iter_num += 1
    if iter_num % 5 == 0 and dist.get_rank() == 0:
        state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(state | {"iter_num": iter_num}, path)
if dist.get_rank() == 0:
    disturbance.finished(first, iter_num, loss.item())
dist.destroy_process_group()
