"""A calibration that was interrupted goes on where it was, and tells how far it is."""

from __future__ import annotations

import errno
import io
import sys

import numpy as np
import onnx
import pytest

from sardonyx import errors
from sardonyx.quantization.calibrate import CalibrationMethod, create_calibrator
from tests.quantization.calibration.models import Feeds, samples, save_convolution

OPTIONS = [
    (CalibrationMethod.MinMax, {}),
    (CalibrationMethod.MinMax, {"per_channel": True}),
    (CalibrationMethod.MinMax, {"moving_average": True, "averaging_constant": 0.3}),
    (CalibrationMethod.Percentile, {"percentile": 95.0}),
    (CalibrationMethod.Entropy, {}),
]


class InterruptedRunError(Exception):
    pass


class Counting(Feeds):
    """Stops with an error before the sample of this number."""

    def __init__(self, feeds, end):
        super().__init__(feeds)
        self.left = end

    def get_next(self):
        if self.left == 0:
            raise InterruptedRunError
        self.left -= 1
        return super().get_next()


def calibrator_of(folder, method=CalibrationMethod.MinMax, **options):
    return create_calibrator(str(folder / "m.onnx"), None, str(folder / "a.onnx"), method, extra_options=options)


@pytest.mark.parametrize(("method", "options"), OPTIONS)
@pytest.mark.parametrize("stop", [1, 3, 5, 6, 8])
def test_what_was_collected_is_not_run_again(tmp_path, method, options, stop):
    save_convolution(tmp_path / "m.onnx")
    feeds = samples(9)
    plain = calibrator_of(tmp_path, method, **options)
    for part in (feeds[:5], feeds[5:]):
        plain.collect_data(Feeds(part))
    wanted = plain.compute_data()

    state = {"state_path": str(tmp_path / "state.npz"), "state_every": 3}
    first = calibrator_of(tmp_path, method, **options, **state)
    if stop > 5:
        first.collect_data(Feeds(feeds[:5]))
    start, end = (5, 9) if stop > 5 else (0, 5)
    with pytest.raises(InterruptedRunError):
        first.collect_data(Counting(feeds[start:end], stop - start))
    second = calibrator_of(tmp_path, method, **options, **state)
    ran = []
    run = second.infer_session.run
    second.infer_session.run = lambda names, feed: (ran.append(feed), run(names, feed))[1]
    for part in (feeds[:5], feeds[5:]):
        second.collect_data(Feeds(part))
    assert len(ran) == 9 - stop // 3 * 3
    found = second.compute_data()
    assert list(found) == list(wanted)
    for name in wanted:
        for one, other in zip(found[name].range_value, wanted[name].range_value, strict=True):
            np.testing.assert_array_equal(one, other)


def test_a_finished_calibration_runs_nothing(tmp_path):
    save_convolution(tmp_path / "m.onnx")
    feeds, state = samples(2), str(tmp_path / "state.npz")
    calibrator_of(tmp_path, state_path=state).collect_data(feeds)
    again = calibrator_of(tmp_path, state_path=state)
    again.infer_session.run = None
    again.collect_data(feeds)
    assert again.compute_data()["x"].lowest == min(feed["x"].min() for feed in feeds)


def test_states_of_something_else(tmp_path):
    path = save_convolution(tmp_path / "m.onnx")
    state = tmp_path / "state.npz"
    calibrator_of(tmp_path, state_path=state).collect_data(samples(1))
    for method, options in ((CalibrationMethod.Percentile, {}), (CalibrationMethod.MinMax, {"per_channel": True})):
        with pytest.raises(errors.InvalidArgument, match=r"state.npz holds the state of a calibration of another"):
            calibrator_of(tmp_path, method, state_path=state, **options)
    model = onnx.load(path)
    model.graph.node[1].op_type = "Elu"
    onnx.save(model, path)
    with pytest.raises(errors.InvalidArgument, match="of another model or with other options: delete it"):
        calibrator_of(tmp_path, state_path=state)
    for content in (b"", b"no state", b"PK\x03\x04"):
        state.write_bytes(content)
        with pytest.raises(errors.InvalidArgument, match="holds no state of a calibration"):
            calibrator_of(tmp_path, state_path=state)
    np.savez(state, x=np.zeros(2))
    with pytest.raises(errors.InvalidArgument, match="holds no state of a calibration"):
        calibrator_of(tmp_path, state_path=state)
    with pytest.raises(errors.InvalidArgument, match="after every 0 samples"):
        calibrator_of(tmp_path, state_path=tmp_path / "new.npz", state_every=0)
    with pytest.raises(errors.InvalidArgument, match="OrtCompatible"):
        calibrator_of(tmp_path, CalibrationMethod.Entropy, state_path=tmp_path / "new.npz", OrtCompatible=True)


def test_a_state_that_cannot_be_written_leaves_the_one_before(tmp_path, monkeypatch):
    save_convolution(tmp_path / "m.onnx")
    state = tmp_path / "state.npz"
    calibrator = calibrator_of(tmp_path, state_path=state)
    calibrator.collect_data(samples(1))
    before = state.read_bytes()

    def fill_the_disk(file, **arrays):
        file.write(b"part of a file")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(np, "savez", fill_the_disk)
    with pytest.raises(errors.Fail, match=r"Saving the state of the calibration to .*state.npz failed: No space left"):
        calibrator.collect_data(samples(1))
    assert state.read_bytes() == before
    assert sorted(one.name for one in tmp_path.iterdir()) == ["a.onnx", "m.onnx", "state.npz"]


def test_progress_is_told(tmp_path):
    save_convolution(tmp_path / "m.onnx")
    told = []
    calibrator = calibrator_of(tmp_path, progress=lambda done, total: told.append((done, total)))
    calibrator.collect_data(samples(2))
    calibrator.collect_data(Feeds(samples(1)))
    assert told == [(1, 2), (2, 2), (1, None)]


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_bar_is_drawn_on_terminals_alone(tmp_path, monkeypatch, is_terminal):
    save_convolution(tmp_path / "m.onnx")
    stream = io.StringIO()
    stream.isatty = lambda: is_terminal
    monkeypatch.setattr(sys, "stderr", stream)
    calibrator_of(tmp_path).collect_data(samples(3))
    assert stream.getvalue().endswith("] 3/3\n") == is_terminal
    assert bool(stream.getvalue()) == is_terminal
