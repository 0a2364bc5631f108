"""The teacher's loss on held-out documents: python teacher_loss.py --teacher FILE.gguf --heldout heldout.jsonl.

Each conversation is put into the teacher's own template, with the system message it wrote under. Counted are the texts
of questions and answers and the end of each turn; template tokens are given. Prints nats per byte of text: of all of it,
and of the answers alone.
"""

import argparse
import json

import torch

import teacher
import topics

BEGIN = 1  # <|im_start|>


def encode(tokenizer, document, system):
    """(ids, class of each id as a target: 0 not counted, 1 question, 2 answer, bytes of questions, of answers)."""
    ids = lambda text: tokenizer.encode(text).ids
    out = [BEGIN] + ids("system\n" + system) + [teacher.END_OF_TURN] + ids("\n")
    kinds, size = [0] * len(out), [0, 0]
    messages = document.get("messages") or [{"role": "assistant", "content": document["text"]}]
    for m in messages:
        if m["role"] == "system":
            continue
        answer = m["role"] == "assistant"
        head, text = [BEGIN] + ids(m["role"] + "\n"), ids(m["content"]) + [teacher.END_OF_TURN]
        out += head + text + ids("\n")
        kinds += [0] * len(head) + [2 if answer else 1] * len(text) + [0]
        size[answer] += len(m["content"].encode())
    return out, kinds, size


@torch.no_grad()
def main():
    a = argparse.ArgumentParser(description=__doc__)
    a.add_argument("--teacher", required=True)
    a.add_argument("--heldout", required=True)
    a.add_argument("--documents", type=int, default=1000)
    a.add_argument("--batch", type=int, default=16)
    a.add_argument("--system", default=topics.SYSTEM)
    a.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    a = a.parse_args()
    m = teacher.load(a.teacher, a.device, torch.bfloat16 if a.device == "cuda" else torch.float32)
    tokenizer = teacher.load_tokenizer(a.teacher)
    with open(a.heldout, encoding="utf-8") as f:
        documents = [json.loads(line) for _, line in zip(range(a.documents), f)]
    rows = sorted((encode(tokenizer, d, a.system) for d in documents), key=lambda r: len(r[0]))
    nats, size = [0.0, 0.0], [sum(r[2][i] for r in rows) for i in (0, 1)]
    for at in range(0, len(rows), a.batch):
        part = rows[at : at + a.batch]
        longest = max(len(r[0]) for r in part)
        pad = lambda x: torch.tensor([v + [0] * (longest - len(v)) for v in x], device=a.device)
        ids, kinds = pad([r[0] for r in part]), pad([r[1] for r in part])
        logits = teacher.forward(m, ids)[:, :-1]
        loss = torch.nn.functional.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none")
        for i in (0, 1):
            nats[i] += float(loss[kinds[:, 1:] == i + 1].sum())
    print(
        f"teacher: {sum(nats) / sum(size):.4f} nats per byte of text, {nats[1] / size[1]:.4f} of the answers alone"
        f" ({len(rows)} documents, {sum(size)} bytes)"
    )


if __name__ == "__main__":
    main()
