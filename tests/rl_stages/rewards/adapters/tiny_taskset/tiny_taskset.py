"""A taskset of the package `verifiers`, v1: is the reply the row's word, and how long is it."""

import verifiers.v1 as vf


class WordData(vf.TaskData):
    word: str


class WordTask(vf.Task[WordData]):
    @vf.reward(weight=0.5)
    async def said(self, trace) -> float:
        return float(trace.last_reply == self.data.word)

    @vf.metric
    async def letters(self, trace) -> float:
        return float(len(trace.last_reply))


class WordTaskset(vf.Taskset[WordTask, vf.TasksetConfig]):
    def load(self):
        yield WordTask(WordData(prompt="Say a word.", word="hello"), self.config.task)


__all__ = ["WordTaskset"]
