"""From logits to tokens: samples and beams grow, and end."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from kvik.engine.beam import BeamSearch
from kvik.engine.choose import alternatives, choose
from kvik.engine.job import Branch, Job, Status
from kvik.engine.memory import Memory
from kvik.engine.request import Finish, Output, Request
from kvik.engine.sharing import shared_bytes
from kvik.engine.text import TextStream
from kvik.errors import KvikError
from kvik.models import Model


class Decoding:
    """Gives branches their next tokens, ends them, and collects what there is to tell in ``news``.

    ``close`` is told of every request that has ended.
    """

    def __init__(self, model: Model, memory: Memory, close: Callable[[Job], None]) -> None:
        self.model, self.memory, self.close = model, memory, close
        self.news: list[Output] = []
        self.generated = 0

    def stream(self, request: Request) -> TextStream | None:
        """Where the text of a new sample is put together; None without a tokenizer."""
        if self.model.path is None:
            return None
        return TextStream(self.model.tokenizer, request.stop, continues=True)

    def advance(self, ready: list[Branch], logits: Tensor) -> None:
        """Gives every branch whose known tokens are computed its next one.

        ``logits`` [len(ready), vocab].
        """
        branches, table = ready, logits
        if not all([branch.job.single for branch in ready]):
            branches, rows = self._share_out(ready, logits)
            table = logits[rows]
        if not branches:
            return
        for row, (branch, token) in enumerate(zip(branches, choose(table, branches), strict=True)):
            job, ids = branch.job, branch.text.ids
            if isinstance(token, KvikError):
                number, index = job.id, branch.index
                self._finish(branch, Output(number, index, finish="error", reason=str(token)))
                continue
            self.generated += 1
            branch.text.append(token)
            goes_on = token not in job.eos_ids and len(ids) < job.longest
            if goes_on and job.plain and branch.stream is None:
                self.news.append(Output(job.id, branch.index, (token,)))
            else:
                self._tell(branch, token, table[row])

    def _share_out(self, ready: list[Branch], logits: Tensor) -> tuple[list[Branch], list[int]]:
        """Branches that sample, each with its row; beams take theirs and search."""
        branches: list[Branch] = []
        rows: list[int] = []
        for row, branch in enumerate(ready):
            job = branch.job
            if job.request.beams is not None:
                branch.row = logits[row]
                if job.status is Status.RUNNING and all(b.row is not None for b in job.live):
                    self._search(job)
                continue
            branches.append(branch)
            rows.append(row)
            if branch.known == len(job.request.prompt):
                fresh = [b for b in job.live if b is not branch]
                branches += fresh  # they start from the same row
                rows += [row] * len(fresh)
        return branches, rows

    def _tell(self, branch: Branch, token: int, row: Tensor) -> None:
        """What a token sampled from ``row`` [vocab] means: its text, an end, what was asked."""
        job, request, stream = branch.job, branch.job.request, branch.stream
        finish: Finish | None = None
        text = ""
        if token in job.eos_ids:
            finish = "eos"
        elif stream is not None:
            text = stream.push(token)
            if stream.stopped:
                finish = "stop"
        if finish is None and branch.known >= job.longest:
            finish = "length"
        if finish is not None and finish != "stop" and stream is not None:
            text += stream.finish()
        output = Output(job.id, branch.index, (token,), text, finish)
        if request.logprobs is not None:
            logprob, top = alternatives(row, token, request.logprobs)
            output = output._replace(logprob=logprob, top=top)
        if finish is None:
            self.news.append(output)
        else:
            self._finish(branch, output)

    def _finish(self, branch: Branch, output: Output) -> None:
        """Ends one sample of a request, and the request with its last one."""
        job = branch.job
        self._measure(job)
        self.memory.remember(branch)
        self.memory.release(branch)
        branch.finish = output.finish
        self.news.append(output._replace(last=not job.live))
        if not job.live:
            self.close(job)

    def _measure(self, job: Job) -> None:
        """Notes what the sequences of a request share, before the first of them goes."""
        held = [b.sequence for b in job.live if b.sequence is not None]
        if job.shared is None and len(held) > 1:
            job.shared = shared_bytes(self.memory.cache, held)

    # Beam search

    def _search(self, job: Job) -> None:
        """One step of a beam search, now that all its beams have logits."""
        request, beams = job.request, job.live
        assert request.beams is not None
        if job.search is None:
            job.search = BeamSearch(request.beams, eos_ids=job.eos_ids, max_new=request.max_new)
        try:
            choices = job.search.advance(torch.stack([b.row for b in beams if b.row is not None]))
        except KvikError as error:
            self.end(job, "error", str(error))
            return
        self.generated += len(choices)
        if job.search.done:
            self._measure(job)
            self._report_hypotheses(job)
            self.close(job)
            return
        grown = []
        for index, choice in enumerate(choices):
            parent = beams[choice.parent]
            branch = Branch(job, index, parent.text.fork(), None)
            branch.text.append(choice.token)
            assert parent.sequence is not None
            branch.sequence = self.memory.cache.fork(parent.sequence)
            grown.append(branch)
        job.branches = grown
        for beam in beams:
            self.memory.release(beam)

    def _report_hypotheses(self, job: Job) -> None:
        assert job.search is not None
        found = job.search.result()
        for index, (tokens, score, finish) in enumerate(found):
            stream, text = self.stream(job.request), ""
            if stream is not None:
                shown = tokens[:-1] if finish == "eos" else tokens
                text = "".join(map(stream.push, shown)) + stream.finish()
            last = index + 1 == len(found)
            output = Output(job.id, index, tokens, text, finish, score=score, last=last)
            self.news.append(output)

    def end(self, job: Job, finish: Finish, reason: str = "") -> None:
        """Ends all that is left of a request."""
        live = job.live
        for branch in live:
            text = "" if branch.stream is None else branch.stream.finish()
            last = branch is live[-1]
            self.news.append(
                Output(job.id, branch.index, (), text, finish, reason=reason, last=last)
            )
        self.close(job)
