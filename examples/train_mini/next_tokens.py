"""Writes the likeliest next tokens of a checkpoint in PyTorch, for `troupe eval --compare-argmax` (docs/model.md).

usage: next_tokens.py --checkpoint FOLDER --text heldout.jsonl --to FILE [--documents N] [--context N] [--run OUT]

Every line of heldout.jsonl ({"messages": ...} or {"text": ...}) is run alone. With --run the weights of train.py before
export (--weights in OUT) are run instead of the checkpoint's; config and tokenizer are the checkpoint's all the same.
"""
import argparse
import json
import pathlib

import torch
from tokenizers import Tokenizer

import checkpoint
import engram_hash
import pack
import settings as shapes
from model import Model


@torch.no_grad()
def next_of(model, ids, device):
    """(likeliest token after every token, nats of ids[1:]) of one document."""
    padded = ids + [0] * (-len(ids) % model.s.sliding_window)
    out = model.forward(torch.tensor([padded], device=device), want_logits=True)
    logits = out.logits[0, :len(ids)].double()
    best = logits.argmax(-1)
    targets = torch.tensor(ids[1:], device=device)
    nats = -torch.log_softmax(logits[:-1], -1).gather(1, targets[:, None]).sum().item()
    return best.tolist(), nats


def main():
    """The command line."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--checkpoint", required=True, type=pathlib.Path)
    p.add_argument("--text", required=True, type=pathlib.Path)
    p.add_argument("--to", required=True, type=pathlib.Path)
    p.add_argument("--documents", type=int, default=300)
    p.add_argument("--context", type=int, default=4096, help="longer documents are cut")
    p.add_argument("--run", type=pathlib.Path)
    p.add_argument("--weights", default="final.pt")
    p.add_argument("--cpu", action="store_true")
    args = p.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() and not args.cpu else "cpu")
    model = checkpoint.load(args.checkpoint, device)
    if args.run:
        trained = {k: v.to(device) for k, v in torch.load(args.run / args.weights, map_location="cpu",
                                                          weights_only=True).items()}
        mapping = engram_hash.mapping_of(args.checkpoint)
        model = Model(shapes.load(args.checkpoint), trained, engram_hash.Hash(model.s, mapping, device))
    tokenizer = Tokenizer.from_file(str(args.checkpoint / "tokenizer.json"))
    with args.text.open(encoding="utf-8") as texts, args.to.open("w", encoding="utf-8") as out:
        head = {"format": "troupe-next-1", "by": "pytorch before export" if args.run else "pytorch",
                "model": args.checkpoint.resolve().name}
        out.write(json.dumps(head) + "\n")
        for number, line in zip(range(args.documents), texts):
            document = json.loads(line)
            whole = pack.encode(tokenizer, document)
            parts = [document["text"]] if "text" in document else [m["content"] for m in document["messages"]]
            size = sum(len(t.encode()) for t in parts)
            ids = whole[:args.context]
            best, nats = next_of(model, ids, device)
            out.write(json.dumps({"document": number, "tokens": ids, "next": best, "nats": nats,
                                  "bytes": size * len(ids) // len(whole)}) + "\n")


if __name__ == "__main__":
    main()
