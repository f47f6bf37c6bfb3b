"""Operations as calls of torch_npu; importing any module here imports it, which needs the device's
libraries. Only ``ops.npu.register`` does so. Every call is checked against the schemas of the real
wheel by ``make test-npu-schema``, and against a record of them by the tests.
"""
