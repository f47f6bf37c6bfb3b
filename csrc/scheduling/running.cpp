// Before vLLM schedules: what its running requests need, and which drafts they keep.
#include <algorithm>
#include <vector>

#include "objects.hpp"

namespace scheduling {

namespace {

// What any step is told of the running requests.
struct Survey {
  Owned started{PyList_New(0)};
  std::int64_t context_tokens = 0;

  void add(PyObject* request, const Attributes& attributes) {
    context_tokens += attributes.integer(names.num_computed_tokens);
    if (attributes.flag(names.is_prefill_chunk)) appended(started.get(), request);
  }
};

// MeanSurvival.rates, as the table's type.
std::vector<float> survival_rates(const Array<double>& survived, const Array<double>& reached) {
  check_length("survived", survived.rows(), reached.rows());
  std::vector<float> rates;
  double chance = 1.0;
  for (Py_ssize_t j = 0; j < reached.rows(); ++j)
    rates.push_back(static_cast<float>(chance *= survived.data()[j] / reached.data()[j]));
  return rates;
}

// The table's columns, and what a plan reads.
class Rates {
 public:
  Rates(PyObject* const* table, PyObject* const* outputs, std::vector<float> prior)
      : newest_(table[0], 2, "newest"),
        previous_(table[1], 2, "previous"),
        num_rounds_(table[2], 1, "num_rounds"),
        budget_(outputs[0], 2, "budget"),
        ranking_(outputs[1], 2, "ranking"),
        prior_(std::move(prior)) {
    check_length("previous", previous_.rows(), newest_.rows());
    check_length("num_rounds", num_rounds_.rows(), newest_.rows());
    for (const Py_ssize_t length : {previous_.columns(), budget_.columns(), ranking_.columns()})
      check_length("a row of rates", length, newest_.columns());
    if (!prior_.empty()) check_length("a row of rates", prior_.size(), newest_.columns());
  }

  Py_ssize_t num_rows() const { return newest_.rows(); }
  Py_ssize_t room() const { return std::min(budget_.rows(), ranking_.rows()); }

  // survival.planning_rates for one request; without `prior`, compatible_prior stands in.
  void write(Py_ssize_t place, std::int64_t row, bool in_flight) const {
    const std::int64_t rounds = num_rounds_.data()[row];
    const float exists = rounds > 0 || in_flight ? 1.0f : 0.0f;
    for (Py_ssize_t j = 0; j < newest_.columns(); ++j) {
      const float unknown = prior_.empty() ? exists : prior_[j];
      const float fresh = rounds > 0 ? newest_.row(row)[j] : unknown;
      const float settled = rounds > 1 ? previous_.row(row)[j] : unknown;
      ranking_.row(place)[j] = fresh;
      budget_.row(place)[j] = in_flight ? fresh : settled;
    }
  }

 private:
  const Array<float> newest_, previous_;
  const Array<std::int64_t> num_rounds_;
  const Written<float> budget_, ranking_;
  const std::vector<float> prior_;
};

// Drafts that could still become output: one token of the step is the target's own, and a step in
// flight yields at least one.
std::int64_t drafts_left(const Attributes& request, bool in_flight, std::int64_t most) {
  const std::int64_t end =
      request.integer(names.num_prompt_tokens) + request.integer(names.max_tokens);
  const std::int64_t left = std::min(end, most) - request.length(names.all_token_ids) - 1;
  return std::max<std::int64_t>(left - in_flight, 0);
}

}  // namespace

PyObject* survey(PyObject*, PyObject* const* args, Py_ssize_t count) {
  return guarded([&]() -> PyObject* {
    check_count("survey", count, 1);
    PyObject* running = checked_list(args[0], "running");
    Survey seen;
    const Ahead requests(PySequence_Fast_ITEMS(running), PyList_GET_SIZE(running));
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(running); ++i) {
      PyObject* request = requests.at(i);
      seen.add(request, Attributes(request));
    }
    return Py_BuildValue("OL", seen.started.get(), static_cast<long long>(seen.context_tokens));
  });
}

PyObject* collect(PyObject*, PyObject* const* args, Py_ssize_t count) {
  return guarded([&]() -> PyObject* {
    check_count("collect", count, 12);
    PyObject* running = checked_list(args[0], "running");
    const bool is_async = as_bool(args[1]);
    const std::int64_t most_tokens = as_int(args[2]);
    PyObject* table_rows = checked_dict(args[3], "rows");
    std::vector<float> prior;
    if (args[7] != Py_None)
      prior = survival_rates(Array<double>(args[7], 1, "survived"),
                             Array<double>(args[8], 1, "reached"));
    const Rates rates(args + 4, args + 10, std::move(prior));
    const Written<std::int32_t> limits(args[9], 1, "limits");
    const Py_ssize_t room = std::min(limits.rows(), rates.room());

    Survey seen;
    const Owned drafted(PyList_New(0));
    const Ahead requests(PySequence_Fast_ITEMS(running), PyList_GET_SIZE(running));
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(running); ++i) {
      PyObject* request = requests.at(i);
      const Attributes attributes(request);
      seen.add(request, attributes);
      const Py_ssize_t num_offered = attributes.length(names.spec_token_ids);
      if (num_offered == 0) continue;
      const Py_ssize_t place = PyList_GET_SIZE(drafted.get());
      if (place >= room)
        throw std::invalid_argument("more requests have drafts than the " + std::to_string(room) +
                                    " there is room for");
      const bool in_flight = is_async && attributes.integer(names.num_in_flight_tokens) > 0;
      limits.data()[place] = static_cast<std::int32_t>(
          std::min<std::int64_t>(num_offered, drafts_left(attributes, in_flight, most_tokens)));
      const std::int64_t row =
          row_of(table_rows, attributes.get(names.request_id).get(), rates.num_rows());
      rates.write(place, row, in_flight);
      appended(drafted.get(), request);
    }
    return Py_BuildValue("OOL", drafted.get(), seen.started.get(),
                         static_cast<long long>(seen.context_tokens));
  });
}

PyObject* trim(PyObject*, PyObject* const* args, Py_ssize_t count) {
  return guarded([&]() -> PyObject* {
    check_count("trim", count, 2);
    PyObject* requests = checked_list(args[0], "requests");
    const Array<std::int32_t> num_drafts(args[1], 1, "num_drafts");
    check_length("num_drafts", num_drafts.rows(), PyList_GET_SIZE(requests));
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(requests); ++i) {
      PyObject* request = PyList_GET_ITEM(requests, i);
      const Owned drafts = Attributes(request).get(names.spec_token_ids);
      const std::int32_t kept = num_drafts.data()[i];
      if (kept >= Attributes::length_of(drafts.get())) continue;
      // A new list: vLLM's asynchronous scheduler shares one between requests.
      const Owned shorter(PySequence_GetSlice(drafts.get(), 0, kept));
      require(PyObject_SetAttr(request, names.spec_token_ids, shorter.get()) == 0);
    }
    Py_RETURN_NONE;
  });
}

}  // namespace scheduling
