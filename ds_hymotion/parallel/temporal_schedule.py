"""What a stage of a pipeline by time does in a step, as data: no process is needed to look at it."""

from __future__ import annotations

from collections.abc import Iterator

from deepspeed.runtime.pipe.schedule import OptimizerStep, PipeInstruction, PipeSchedule, ReduceGrads


class MicroBatchInstruction(PipeInstruction):
    """One that concerns micro-batch ``micro``."""

    def __init__(self, micro: int) -> None:
        super().__init__(micro=micro)
        self.micro = micro


class LoadChunks(MicroBatchInstruction):
    """Take this stage's chunks out of the micro-batch."""


class RecvState(MicroBatchInstruction):
    """Receive the states from the stage before."""


class EncodeState(MicroBatchInstruction):
    """Compute the states of the next chunks: cheap."""


class SendState(MicroBatchInstruction):
    """Send the states to the next stage."""


class Forward(MicroBatchInstruction):
    """Velocity and loss of this stage's chunks: heavy."""


class Backward(MicroBatchInstruction):
    """Gradients of the network and of the states that entered it: heavy."""


class RecvStateGrad(MicroBatchInstruction):
    """Receive the gradient of the states that were sent."""


class StateBackward(MicroBatchInstruction):
    """Gradients of the state encoder and of the states that were received: cheap."""


class SendStateGrad(MicroBatchInstruction):
    """Send the gradient of the states that were received."""


class ReduceStages(PipeInstruction):
    """Sum the gradients of the weights that all stages share."""


class TemporalSchedule(PipeSchedule):
    """States of all micro-batches run ahead, then each stage computes its chunks without waiting for another.

    The gradients of states come back one micro-batch later on each stage before: stage s takes micro-batch k's when
    it has computed micro-batch k + p − 1 − s itself, so that it does not wait either.
    """

    def steps(self) -> Iterator[list[PipeInstruction]]:
        first, last = self.stage_id == 0, self.stage_id == self.stages - 1
        for micro in range(self.micro_batches):
            ahead: list[PipeInstruction] = [LoadChunks(micro)]
            ahead += [] if first else [RecvState(micro)]
            ahead += [EncodeState(micro)]
            ahead += [] if last else [SendState(micro)]
            yield ahead
        lag = self.stages - 1 - self.stage_id
        for micro in range(self.micro_batches + lag):
            commands: list[PipeInstruction] = []
            if micro < self.micro_batches:
                commands += [Forward(micro), Backward(micro)]
            if micro >= lag:
                commands += [] if last else [RecvStateGrad(micro - lag)]
                commands += [StateBackward(micro - lag)]
                commands += [] if first else [SendStateGrad(micro - lag)]
            yield commands
        yield [ReduceStages(), ReduceGrads(), OptimizerStep()]


class TemporalInference(PipeSchedule):
    """States run ahead, then every stage computes its chunks."""

    def steps(self) -> Iterator[list[PipeInstruction]]:
        for micro in range(self.micro_batches):
            ahead: list[PipeInstruction] = [LoadChunks(micro)]
            ahead += [] if self.stage_id == 0 else [RecvState(micro)]
            ahead += [EncodeState(micro)]
            ahead += [] if self.stage_id == self.stages - 1 else [SendState(micro)]
            yield ahead
        for micro in range(self.micro_batches):
            yield [Forward(micro)]
