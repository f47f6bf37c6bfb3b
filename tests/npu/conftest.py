from fake_npu.fixtures import fake_npu_library  # noqa: F401
