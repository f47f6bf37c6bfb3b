// vllm_deepinfer._scheduling: the loops over requests of vllm_deepinfer/scheduler, for which
// request_loops_reference.py says what each computes.
#include "objects.hpp"

namespace scheduling {

Names names;

void make_names() {
  const auto made = [](PyObject*& name, const char* text) {
    name = PyUnicode_InternFromString(text);
    require(name != nullptr);
  };
  made(names.all_token_ids, "_all_token_ids");
  made(names.drop_stale_output, "drop_stale_output");
  made(names.is_prefill_chunk, "is_prefill_chunk");
  made(names.max_tokens, "max_tokens");
  made(names.num_computed_tokens, "num_computed_tokens");
  made(names.num_in_flight_tokens, "num_in_flight_tokens");
  made(names.num_prompt_tokens, "num_prompt_tokens");
  made(names.num_stale_output_tokens, "num_stale_output_tokens");
  made(names.request_id, "request_id");
  made(names.spec_token_ids, "spec_token_ids");
  made(names.status, "status");
}

namespace {

PyMethodDef methods[] = {
    {"survey", fast(survey), METH_FASTCALL, "Started prompts and tokens of running requests."},
    {"collect", fast(collect), METH_FASTCALL, "What a plan needs of running requests."},
    {"trim", fast(trim), METH_FASTCALL, "Shorten drafts."},
    {"verified", fast(verified), METH_FASTCALL, "Blocks of drafts that a step verified."},
    {"settle", fast(settle), METH_FASTCALL, "Count verified blocks."},
    {"receive", fast(receive), METH_FASTCALL, "Put new blocks into the table."},
    {nullptr, nullptr, 0, nullptr}};

PyModuleDef module_definition = {PyModuleDef_HEAD_INIT,
                                 "vllm_deepinfer._scheduling",
                                 "Loops over the requests of a step.",
                                 -1,
                                 methods,
                                 nullptr,
                                 nullptr,
                                 nullptr,
                                 nullptr};

}  // namespace

PyObject* make_module() {
  return guarded([]() -> PyObject* {
    make_names();
    return PyModule_Create(&module_definition);
  });
}

}  // namespace scheduling

PyMODINIT_FUNC PyInit__scheduling() { return scheduling::make_module(); }
