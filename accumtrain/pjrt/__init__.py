"""TensorFlow traces the functions of a run; JAX's XLA compiles them and runs them on a PJRT device.

A traced function becomes a program (`program.py`), which JAX is given as StableHLO (`hand_over.py`). The values of the
variables are buffers on the device (`state.py`). `JaxRuntime` joins the three; `JaxPrograms` make updates with it.
"""
