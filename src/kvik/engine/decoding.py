"""From logits to tokens: samples and beams grow, and end."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import NamedTuple

import torch
from torch import Tensor

from kvik.engine.beam import BeamSearch
from kvik.engine.choose import Chosen, alternatives, as_refusal, choose
from kvik.engine.identity import Text
from kvik.engine.job import Branch, Job, Status
from kvik.engine.memory import Memory
from kvik.engine.request import Finish, Output, Request
from kvik.engine.sharing import shared_bytes
from kvik.engine.text import TextStream
from kvik.errors import KvikError
from kvik.models import Model


class Next(NamedTuple):
    """What becomes of a branch: the news of it, and how its text stands then."""

    branch: Branch
    output: Output
    stream: TextStream | None


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

        ``logits`` [len(ready), vocab]. All that can fail comes before anything is changed, for
        all samples together and for each search: nothing is half told when it raises.
        """
        branches, table, searches = ready, logits, list[Job]()
        if not all([branch.job.single for branch in ready]):
            branches, rows, searches = self._share_out(ready, logits)
            table = logits[rows]
        if branches:
            plain: list[tuple[Text, int]] = []
            news: list[Output] = []
            others: list[Next] = []
            for row, (branch, token) in enumerate(
                zip(branches, choose(table, branches), strict=True)
            ):
                job, text = branch.job, branch.text
                if (  # what most tokens are, at little cost
                    job.plain
                    and branch.stream is None
                    and type(token) is int
                    and token not in job.eos_ids
                    and len(text.ids) + 1 < job.longest
                ):
                    plain.append((text, token))
                    news.append(Output(job.id, branch.index, (token,)))
                else:
                    others.append(self._next(branch, token, table, row))
            for text, token in plain:
                text.append(token)
            self.generated += len(plain)
            self.news += news
            self._publish(others)
        for job in searches:
            self._search(job)

    def _publish(self, steps: list[Next]) -> None:
        ended = [step.branch for step in steps if step.output.finish is not None]
        for branch in ended:
            self._measure(branch.job)
        for branch, output, stream in steps:
            if output.tokens:
                branch.text.append(output.tokens[0])
                self.generated += 1
            branch.stream = stream
            if output.finish is not None:
                branch.finish = output.finish
                output = output._replace(last=not branch.job.live)
            self.news.append(output)
        with ExitStack() as stack:  # all of them, though one fails
            for branch in reversed(ended):
                stack.callback(self._let_go, branch)

    def _share_out(
        self, ready: list[Branch], logits: Tensor
    ) -> tuple[list[Branch], list[int], list[Job]]:
        """Branches that sample, each with its row; beams take theirs, and some then search."""
        branches: list[Branch] = []
        rows: list[int] = []
        searches: list[Job] = []
        for row, branch in enumerate(ready):
            job = branch.job
            if job.request.beams is not None:
                branch.row = logits[row]
                if job.status is Status.RUNNING and all(b.row is not None for b in job.live):
                    searches.append(job)
                continue
            branches.append(branch)
            rows.append(row)
            if branch.known == len(job.request.prompt):
                fresh = [b for b in job.live if b is not branch and b.known == branch.known]
                branches += fresh  # they start from the same row
                rows += [row] * len(fresh)
        return branches, rows, searches

    def _next(self, branch: Branch, chosen: Chosen, table: Tensor, row: int) -> Next:
        """What a token chosen from a row of ``table`` [.., vocab] means; changes nothing."""
        job = branch.job
        if not isinstance(chosen, KvikError):
            try:
                return self._tell(branch, chosen, table[row])
            except MemoryError:
                raise
            except Exception as error:
                chosen = as_refusal(error)
        output = Output(job.id, branch.index, finish="error", reason=str(chosen))
        return Next(branch, output, branch.stream)

    def _tell(self, branch: Branch, token: int, row: Tensor) -> Next:
        """A token sampled from ``row`` [vocab]: its text, an end, what was asked."""
        job, request = branch.job, branch.job.request
        stream = None if branch.stream is None else branch.stream.fork()
        finish: Finish | None = None
        text = ""
        if token in job.eos_ids:
            finish = "eos"
        elif stream is not None:
            text = stream.push(token)
            if stream.stopped:
                finish = "stop"
        if finish is None and branch.known + 1 >= job.longest:
            finish = "length"
        if finish is not None and finish != "stop" and stream is not None:
            text += stream.finish()
            if stream.stopped:  # one was complete, and a longer one could still have come
                finish = "stop"
        output = Output(job.id, branch.index, (token,), text, finish)
        if request.logprobs is not None:
            logprob, top = alternatives(row, token, request.logprobs)
            output = output._replace(logprob=logprob, top=top)
        return Next(branch, output, stream)

    def _let_go(self, branch: Branch) -> None:
        """Takes the pages of a sample that has ended, and ends the request with its last one."""
        job = branch.job
        try:
            self.memory.remember(branch)
        finally:
            self.memory.release(branch)
            if not job.live and all(b.sequence is None for b in job.branches):
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
            search = BeamSearch(request.beams, eos_ids=job.eos_ids, max_new=request.max_new)
        else:
            search = job.search.fork()
        try:
            choices = search.advance(torch.stack([b.row for b in beams if b.row is not None]))
            found = self._hypotheses(job, search) if search.done else []
        except MemoryError:
            raise
        except Exception as error:
            self.end(job, "error", str(as_refusal(error)))
            return
        if search.done:
            self._measure(job)
            self._end_with(job, found)
            return
        grown: list[Branch] = []
        try:
            for index, choice in enumerate(choices):
                parent = beams[choice.parent]
                assert parent.sequence is not None
                branch = Branch(job, index, parent.text.fork(), None)
                branch.text.append(choice.token)
                grown.append(branch)
                branch.sequence = self.memory.cache.fork(parent.sequence)
        except BaseException:
            for branch in grown:
                self.memory.release(branch)
            raise
        job.search, job.branches = search, grown
        self.generated += len(choices)
        for beam in beams:
            self.memory.release(beam)

    def _hypotheses(self, job: Job, search: BeamSearch) -> list[Output]:
        """What a search has found so far, best first."""
        found = []
        for index, (tokens, score, finish) in enumerate(search.result()):
            stream, text = self.stream(job.request), ""
            if stream is not None:
                shown = tokens[:-1] if finish == "eos" else tokens
                text = "".join(map(stream.push, shown)) + stream.finish()
            found.append(Output(job.id, index, tokens, text, finish, score=score))
        return found

    def end(self, job: Job, finish: Finish, reason: str = "") -> None:
        """Ends all that is left of a request.

        A beam search gives the hypotheses that it has found, and nothing in place of the rest.
        """
        if job.request.beams is None:
            told = [
                Output(job.id, b.index, (), "" if b.stream is None else b.stream.finish())
                for b in job.live
            ]
        else:
            told = []
            with suppress(Exception):  # their text is no reason to keep the request for ever
                told = [] if job.search is None else self._hypotheses(job, job.search)
            told += [Output(job.id, index) for index in range(len(told), job.request.beams.n)]
        self._end_with(job, [o._replace(finish=finish, reason=reason) for o in told])

    def _end_with(self, job: Job, told: list[Output]) -> None:
        """The last that there is to tell of a request."""
        if told:  # its samples may all have ended in a step that broke off after that
            self.news += [*told[:-1], told[-1]._replace(last=True)]
        self.close(job)
