"""The programs Flashlight is judged by, each one small plain eager function: tests, docs and benchmarks use the same ones.

`variants.VARIANTS` lists them with makers of inputs. `flex` states the same functions for FlexAttention.
"""
