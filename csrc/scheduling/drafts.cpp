// After a step ran: which drafts it verified, what the drafter had said of them and says next.
#include <algorithm>
#include <optional>
#include <vector>

#include "objects.hpp"

namespace scheduling {

namespace {

// The blocks of drafts of a step, but those of requests that are gone; borrowed.
struct Scheduled {
  std::vector<PyObject*> ids, blocks, requests;

  Scheduled(PyObject* drafts, PyObject* all_requests) {
    std::vector<PyObject*> keys, values;
    PyObject *key, *value;
    for (Py_ssize_t place = 0; PyDict_Next(drafts, &place, &key, &value);) {
      keys.push_back(key);
      values.push_back(value);
      __builtin_prefetch(key);
    }
    for (std::size_t i = 0; i < keys.size(); ++i) {
      PyObject* request = find(all_requests, keys[i]);
      if (!request) continue;
      ids.push_back(keys[i]);
      blocks.push_back(values[i]);
      requests.push_back(request);
      __builtin_prefetch(values[i]);
    }
  }
};

// Whether vLLM ignores what a step yielded for this request.
bool is_ignored(PyObject* request, std::int64_t last_unfinished_status) {
  const Attributes attributes(request);
  if (attributes.integer(names.status) > last_unfinished_status) return true;
  return attributes.integer(names.num_stale_output_tokens) > 0 &&
         attributes.flag(names.drop_stale_output);
}

Py_ssize_t num_generated(PyObject* sampled, PyObject* places, PyObject* request_id) {
  PyObject* place = find(places, request_id);
  if (!place) {
    PyErr_SetObject(PyExc_KeyError, request_id);
    throw PythonError{};
  }
  if (PyList_GET_SIZE(sampled) == 0) return 0;
  const std::int64_t index = as_int(place);
  if (index < 0 || index >= PyList_GET_SIZE(sampled))
    throw std::invalid_argument("the output has no row " + std::to_string(index) +
                                " of sampled tokens");
  return Attributes::length_of(PyList_GET_ITEM(sampled, index));
}

void append_integer(PyObject* list, std::int64_t value) {
  const Owned item(PyLong_FromLongLong(value));
  appended(list, item.get());
}

std::int64_t integer_at(PyObject* list, Py_ssize_t index) {
  return as_int(PyList_GET_ITEM(list, index));
}

void check_survivors(std::int64_t offered, std::int64_t accepted, Py_ssize_t num_drafts) {
  if (0 <= accepted && accepted <= offered && offered <= num_drafts) return;
  throw std::invalid_argument(std::to_string(accepted) + " of " + std::to_string(offered) +
                              " drafts survived; no more survive than were offered, and no more "
                              "are offered than " +
                              std::to_string(num_drafts));
}

// What a recalibration makes of what drafters say; without one, that itself.
class Correction {
 public:
  Correction(PyObject* corrected, const Array<float>& said) {
    if (corrected == Py_None) return;
    corrected_.emplace(corrected, 2, "corrected");
    check_length("corrected", corrected_->rows(), said.columns());
    for (Py_ssize_t i = 0; i < said.rows() * said.columns(); ++i)
      if (!(said.data()[i] >= 0.0f && said.data()[i] <= 1.0f))
        throw std::invalid_argument("a probability to correct is not from 0 to 1");
  }
  float of(Py_ssize_t position, float probability) const {
    if (!corrected_) return probability;
    const float level = probability * static_cast<float>(corrected_->columns() - 1);
    return corrected_->row(position)[static_cast<Py_ssize_t>(level)];
  }

 private:
  std::optional<Array<float>> corrected_;
};

// The row of a request that has one, or the next free one.
std::int64_t row_for(PyObject* rows, PyObject* free_rows, PyObject* request_id,
                     Py_ssize_t num_rows) {
  const std::int64_t known = row_of(rows, request_id, num_rows);
  if (known) return known;
  const Py_ssize_t num_free = PyList_GET_SIZE(free_rows);
  if (num_free == 0) throw std::invalid_argument("the table has no free row");
  const Owned row(Py_NewRef(PyList_GET_ITEM(free_rows, num_free - 1)));
  require(PyList_SetSlice(free_rows, num_free - 1, num_free, nullptr) == 0);
  require(PyDict_SetItem(rows, request_id, row.get()) == 0);
  return row_of(rows, request_id, num_rows);
}

}  // namespace

PyObject* verified(PyObject*, PyObject* const* args, Py_ssize_t count) {
  return guarded([&]() -> PyObject* {
    check_count("verified", count, 7);
    PyObject* drafts = checked_dict(args[0], "drafts");
    PyObject* invalid = args[1] == Py_None ? nullptr : checked_dict(args[1], "invalid");
    PyObject* requests = checked_dict(args[2], "requests");
    PyObject* sampled = checked_list(args[3], "sampled");
    PyObject* places = checked_dict(args[4], "places");
    const std::int64_t num_sampled = as_int(args[5]), last_unfinished = as_int(args[6]);
    const Scheduled scheduled(drafts, requests);
    const Ahead alive(scheduled.requests.data(), scheduled.requests.size());
    const Owned request_ids(PyList_New(0)), offered(PyList_New(0)), accepted(PyList_New(0));
    for (std::size_t i = 0; i < scheduled.requests.size(); ++i) {
      if (is_ignored(alive.at(i), last_unfinished)) continue;
      PyObject *request_id = scheduled.ids[i], *block = scheduled.blocks[i];
      const std::int64_t generated = num_generated(sampled, places, request_id);
      std::int64_t length = Attributes::length_of(block);
      if (length == 0 || (generated == 0 && num_sampled != 0)) continue;
      if (PyObject* excess = invalid ? find(invalid, request_id) : nullptr)
        length -= as_int(excess);
      appended(request_ids.get(), request_id);
      append_integer(offered.get(), length);
      append_integer(accepted.get(), std::max<std::int64_t>(generated - num_sampled, 0));
    }
    return Py_BuildValue("OOO", request_ids.get(), offered.get(), accepted.get());
  });
}

PyObject* settle(PyObject*, PyObject* const* args, Py_ssize_t count) {
  return guarded([&]() -> PyObject* {
    check_count("settle", count, 11);
    PyObject* request_ids = checked_list(args[0], "request_ids");
    PyObject* offered = checked_list(args[1], "offered");
    PyObject* accepted = checked_list(args[2], "accepted");
    const Py_ssize_t n = PyList_GET_SIZE(request_ids);
    check_length("offered", PyList_GET_SIZE(offered), n);
    check_length("accepted", PyList_GET_SIZE(accepted), n);
    PyObject* table_rows = checked_dict(args[3], "rows");
    const Array<float> probabilities(args[4], 2, "probabilities");
    const Written<bool> is_open(args[5], 1, "is_open");
    const Written<double> totals[] = {{args[6], 1, "num_offered"},
                                      {args[7], 1, "num_accepted"},
                                      {args[8], 1, "confidence"},
                                      {args[9], 1, "reached"},
                                      {args[10], 1, "survived"}};
    const Py_ssize_t num_drafts = probabilities.columns();
    check_length("is_open", is_open.rows(), probabilities.rows());
    for (const Written<double>& total : totals) check_length("a total", total.rows(), num_drafts);
    for (Py_ssize_t i = 0; i < n; ++i)
      check_survivors(integer_at(offered, i), integer_at(accepted, i), num_drafts);

    std::vector<double> num_offered(num_drafts), num_accepted(num_drafts), num_reached(num_drafts),
        confidence(num_drafts);
    std::vector<std::int64_t> settled;
    for (Py_ssize_t i = 0; i < n; ++i) {
      std::int64_t row =
          row_of(table_rows, PyList_GET_ITEM(request_ids, i), probabilities.rows());
      if (!is_open.data()[row]) row = 0;
      settled.push_back(row);
      const std::int64_t length = integer_at(offered, i), survivors = integer_at(accepted, i);
      for (std::int64_t j = 0; j < length; ++j) {
        num_offered[j] += 1.0;
        num_accepted[j] += j < survivors;
        num_reached[j] += j <= survivors;
        confidence[j] += probabilities.row(row)[j];
      }
    }
    for (const std::int64_t row : settled) is_open.data()[row] = false;
    const std::vector<double>* sums[] = {&num_offered, &num_accepted, &confidence, &num_reached,
                                         &num_accepted};
    for (int k = 0; k < 5; ++k)
      for (Py_ssize_t j = 0; j < num_drafts; ++j) totals[k].data()[j] += (*sums[k])[j];
    return Py_BuildValue("LL", static_cast<long long>(num_drafts ? num_offered[0] : 0),
                         static_cast<long long>(num_drafts ? num_accepted[0] : 0));
  });
}

PyObject* receive(PyObject*, PyObject* const* args, Py_ssize_t count) {
  return guarded([&]() -> PyObject* {
    check_count("receive", count, 13);
    PyObject* request_ids = checked_list(args[0], "request_ids");
    PyObject* is_kept = checked_list(args[1], "is_kept");
    const Array<float> logits(args[2], 2, "logits"), said(args[3], 2, "probabilities");
    const Correction correction(args[4], said);
    PyObject* rows = checked_dict(args[5], "rows");
    PyObject* free_rows = checked_list(args[6], "free rows");
    const Written<float> newest(args[7], 2, "newest"), previous(args[8], 2, "previous"),
        table_logits(args[9], 2, "logits of the table"),
        probabilities(args[10], 2, "probabilities of the table");
    const Written<std::int64_t> num_rounds(args[11], 1, "num_rounds");
    const Written<bool> is_open(args[12], 1, "is_open");
    const Py_ssize_t n = PyList_GET_SIZE(request_ids), num_drafts = newest.columns();
    check_length("is_kept", PyList_GET_SIZE(is_kept), n);
    for (const Array<float>* block : {&logits, &said}) check_length("a block", block->rows(), n);
    for (const Py_ssize_t length : {previous.rows(), table_logits.rows(), probabilities.rows(),
                                    num_rounds.rows(), is_open.rows()})
      check_length("a column of the table", length, newest.rows());
    for (const Py_ssize_t length : {logits.columns(), said.columns(), previous.columns(),
                                    table_logits.columns(), probabilities.columns()})
      check_length("a row of the table", length, num_drafts);

    for (Py_ssize_t i = 0; i < n; ++i) {
      if (!as_bool(PyList_GET_ITEM(is_kept, i))) continue;
      const std::int64_t row =
          row_for(rows, free_rows, PyList_GET_ITEM(request_ids, i), newest.rows());
      std::copy_n(newest.row(row), num_drafts, previous.row(row));
      float chance = 1.0f;
      for (Py_ssize_t j = 0; j < num_drafts; ++j)
        newest.row(row)[j] = chance *= correction.of(j, said.row(i)[j]);
      std::copy_n(logits.row(i), num_drafts, table_logits.row(row));
      std::copy_n(said.row(i), num_drafts, probabilities.row(row));
      num_rounds.data()[row] = std::min<std::int64_t>(num_rounds.data()[row] + 1, 2);
      is_open.data()[row] = true;
    }
    Py_RETURN_NONE;
  });
}

}  // namespace scheduling
