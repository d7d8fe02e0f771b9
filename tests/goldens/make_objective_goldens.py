"""Makes the goldens of objectives, KL estimators, distillation and baselines: small random numbers,
losses as their papers write them, derivatives by PyTorch's autograd in float64.

    pip install torch
    python tests/goldens/make_objective_goldens.py

objectives.json holds
    tokens      per sequence and token: advantage, behavior, proximal and current log-prob
    terms       per objective: the loss of every token and the derivative of the sum of all losses by
                its current log-prob, sequences one after the other
    kl          per estimator: value and derivative at every token, with the proximal log-prob as
                the reference
    topk        places with k candidates: proximal, teacher and current log-probs; loss and
                derivatives for clip 1, range 0.8 to 1.28
    rltf_sd     scores of second and first tries, lengths of the second ones; their advantages, and the
                derivative of the advantage-weighted log-likelihood by every token's log-prob
    baselines   scores and groups of a batch, and the advantages of every baseline
"""

import json
import pathlib

import torch

torch.manual_seed(4)
torch.set_default_dtype(torch.float64)
HERE = pathlib.Path(__file__).parent
LENGTHS = [1, 4, 7, 2]


def tokens():
    rows = []
    for length in LENGTHS:
        advantage = torch.randn(1).item()
        behavior = -torch.rand(length) * 4 - 0.05
        proximal = behavior + 0.5 * torch.randn(length)
        current = (proximal + 0.4 * torch.randn(length)).clamp(max=-0.01)
        rows.append((advantage, behavior, proximal.clamp(max=-0.01), current))
    return rows


def surrogate(ratio, advantage, low, high):
    return -torch.minimum(ratio * advantage, ratio.clamp(1 - low, 1 + high) * advantage)


def ppo(a, mu, prox, pi):
    return surrogate((pi - mu).exp(), a, 0.2, 0.28)


def decoupled(a, mu, prox, pi):
    weight = (prox - mu).exp().clamp(max=1.5)
    return weight * surrogate((pi - prox).exp(), a, 0.2, 0.28)


def cispo(a, mu, prox, pi):
    weight = (pi - mu).exp().clamp(max=1.5).detach()
    return -weight * a * pi


def gspo(a, mu, prox, pi):
    # The mean's value with a gradient for each token, as the paper's equation 13 writes it: every
    # token carries the sequence's ratio, and their sum has T times the sequence's gradient / T.
    ratio = (pi - prox).mean().exp()
    weight = (prox - mu).mean().exp().clamp(max=1.5)
    return (weight * surrogate(ratio, torch.tensor(a), 0.2, 0.28)).expand(len(pi))


def dppo_tv(a, mu, prox, pi):
    gap = pi.exp() - mu.exp()
    drop = (gap > 0.1) if a > 0 else (gap < -0.1)
    rho = (pi - mu).exp()
    return torch.where(drop, torch.zeros_like(rho), -a * rho) + 1e-3 * (pi - mu) ** 2


def token_tis(a, mu, prox, pi):
    weight = (prox - mu).exp().clamp(max=1.5)
    return -weight * (pi - prox).exp() * a


def cross_entropy(a, mu, prox, pi):
    return -a * pi


OBJECTIVES = [cross_entropy, ppo, decoupled, cispo, gspo, dppo_tv, token_tis]


def terms(objective, rows):
    losses, slopes = [], []
    for a, mu, prox, pi in rows:
        pi = pi.clone().requires_grad_()
        loss = objective(a, mu, prox, pi)
        loss.sum().backward()
        losses += loss.tolist()
        slopes += pi.grad.tolist()
    return {"loss": losses, "slope": slopes}


def kl(name, rows):
    values, slopes = [], []
    for _, _, reference, pi in rows:
        pi = pi.clone().requires_grad_()
        x = pi - reference
        value = {"k1": x, "k2": x**2 / 2, "k3": (-x).exp() + x - 1}[name]
        value.sum().backward()
        values += value.tolist()
        slopes += pi.grad.tolist()
    return {"value": values, "slope": slopes}


def topk():
    places = []
    for k in [1, 2, 4, 8]:
        proximal = torch.log_softmax(torch.randn(12), 0).topk(k).values
        teacher = proximal + torch.randn(k)
        current = (proximal + 0.3 * torch.randn(k)).requires_grad_()
        weight = torch.softmax(proximal, 0)
        advantage = (teacher - proximal).clamp(-1, 1) * weight
        ratio = (current - proximal).exp()
        loss = torch.maximum(-advantage * ratio, -advantage * ratio.clamp(0.8, 1.28)).sum()
        loss.backward()
        places.append(
            {
                "proximal": proximal.tolist(),
                "teacher": teacher.tolist(),
                "current": current.tolist(),
                "loss": loss.item(),
                "slope": current.grad.tolist(),
            }
        )
    return places


def baselines():
    scores = torch.tensor([1.0, -1.0, -1.0, 0.5, 1.0, 1.0, -1.0, 0.0])
    groups = [0, 0, 0, 0, 1, 1, 1, 1]
    by_group = scores.view(2, 4)
    mean = by_group.mean(1, keepdim=True)
    others = (by_group.sum(1, keepdim=True) - by_group) / 3
    flat = lambda x: x.flatten().tolist()
    return {
        "scores": scores.tolist(),
        "groups": groups,
        "rloo": flat(by_group - others),
        "grpo": flat((by_group - mean) / (by_group.std(1, keepdim=True) + 1e-4)),
        "dr_grpo": flat(by_group - mean),
        "reinforce_pp": flat((scores - scores.mean()) / (scores.std() + 1e-4)),
    }


def rltf_sd():
    cases = []
    for second, first, lengths in [
        ([1.0, 1.0, -1.0, 0.5], [-1.0, -1.0, 1.0, -0.5, 0.0], [3, 1, 2, 4]),
        ([1.0], [-1.0], [2]),
        ([0.0, 1.0, 1.0], [-1.0, -0.25], [1, 2, 3]),
    ]:
        advantages = torch.tensor(second) - torch.tensor(first).mean()
        logprobs = (-torch.ones(sum(lengths))).requires_grad_()
        weights = advantages.repeat_interleave(torch.tensor(lengths))
        (-(weights * logprobs).mean()).backward()
        cases.append(
            {
                "second": second,
                "first": first,
                "lengths": lengths,
                "advantages": advantages.tolist(),
                "slopes": logprobs.grad.tolist(),
            }
        )
    return cases


def main():
    rows = tokens()
    golden = {
        "tokens": [
            {
                "advantage": a,
                "behavior": mu.tolist(),
                "proximal": prox.tolist(),
                "current": pi.tolist(),
            }
            for a, mu, prox, pi in rows
        ],
        "terms": {f.__name__: terms(f, rows) for f in OBJECTIVES},
        "kl": {name: kl(name, rows) for name in ["k1", "k2", "k3"]},
        "topk": topk(),
        "rltf_sd": rltf_sd(),
        "baselines": baselines(),
    }
    (HERE / "objectives.json").write_text(json.dumps(golden) + "\n")


main()
