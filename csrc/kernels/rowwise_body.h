// One version's row kernels. Included after lanes16.h.

// function(const float* or const Bf16*)
template <class Function>
DEEPINFER_INLINE void typed(Values x, Function function) {
  if (x.is_bf16) {
    function(static_cast<const Bf16*>(x.data));
  } else {
    function(static_cast<const float*>(x.data));
  }
}

template <class Function>
DEEPINFER_INLINE void typed(Results x, Function function) {
  if (x.is_bf16) {
    function(static_cast<Bf16*>(x.data));
  } else {
    function(static_cast<float*>(x.data));
  }
}

template <class X>
DEEPINFER_INLINE float sum_of_squares(const X* x, std::int64_t columns) {
  Lanes sum{};
  for (std::int64_t i = 0; i < columns; i += kLanes) {
    const Lanes v = load(x + i);
    sum = fused(v, v, sum);
  }
  return sum_of(sum);
}

inline float inverse_root(float sum, std::int64_t count, float eps) {
  return 1.0f / __builtin_sqrtf(sum / static_cast<float>(count) + eps);
}

inline void rms_norm(Values x, const std::uint16_t* weight, std::int64_t columns, float eps,
                     Results out) {
  typed(x, [&](auto* row) {
    const float factor = inverse_root(sum_of_squares(row, columns), columns, eps);
    typed(out, [&](auto* target) {
      for (std::int64_t i = 0; i < columns; i += kLanes) {
        store(load(weight + i) * (load(row + i) * factor), target + i);
      }
    });
  });
}

// -- streams --------------------------------------------------------------------------------------

static_assert(kStreams * kStreams == kLanes, "a token's combination fills the lanes");

// Lane 4 i + j holds element [i, j]. Each lane gets the sum of its column, or of its row.
DEEPINFER_INLINE Lanes column_sums(Lanes c) {
  c += __builtin_shufflevector(c, c, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7);
  return c + __builtin_shufflevector(c, c, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11);
}

DEEPINFER_INLINE Lanes row_sums(Lanes c) {
  c += __builtin_shufflevector(c, c, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13);
  return c + __builtin_shufflevector(c, c, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14);
}

DEEPINFER_INLINE Lanes row_maxima(Lanes c) {
  c = larger(
      c, __builtin_shufflevector(c, c, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13));
  return larger(
      c, __builtin_shufflevector(c, c, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14));
}

inline void finish_mixes(const float* projected, float factor, const MixWeights& weights,
                         const Mixes& out) {
  for (int s = 0; s < kStreams; ++s) {
    const float pre = projected[s] * factor, post = projected[kStreams + s] * factor;
    out.pre[s] = sigmoid(pre * weights.scale[0] + weights.base[s]) + weights.hc_eps;
    out.post[s] = 2.0f * sigmoid(post * weights.scale[1] + weights.base[kStreams + s]);
  }
  Lanes c = load(projected + 2 * kStreams) * factor * weights.scale[2] +
            load(weights.base + 2 * kStreams);
  c = exponentials(c - row_maxima(c));
  c = c / row_sums(c) + weights.hc_eps;
  c /= column_sums(c) + weights.hc_eps;
  for (int i = 1; i < weights.iterations; ++i) {
    c /= row_sums(c) + weights.hc_eps;
    c /= column_sums(c) + weights.hc_eps;
  }
  store(c, out.comb);
}

// Tokens share the projection's way through the caches; each has sums of its own.
template <int T, class X>
void mixes_of(const X* const* streams, const MixWeights& weights, const Mixes* out) {
  constexpr int kOutputs = 4;
  float projected[T][kMixes];
  for (int output = 0; output < kMixes; output += kOutputs) {
    Lanes sums[T][kOutputs] = {};
    const float* projection = weights.projection + output * weights.width;
    for (std::int64_t i = 0; i < weights.width; i += kLanes) {
      Lanes values[T];
      for (int t = 0; t < T; ++t) values[t] = load(streams[t] + i);
      for (int o = 0; o < kOutputs; ++o) {
        const Lanes weight = load(projection + o * weights.width + i);
        for (int t = 0; t < T; ++t) sums[t][o] = fused(weight, values[t], sums[t][o]);
      }
    }
    for (int t = 0; t < T; ++t) {
      for (int o = 0; o < kOutputs; ++o) projected[t][output + o] = sum_of(sums[t][o]);
    }
  }
  for (int t = 0; t < T; ++t) {
    const float squares = sum_of_squares(streams[t], weights.width);
    finish_mixes(projected[t], inverse_root(squares, weights.width, weights.rms_eps), weights,
                 out[t]);
  }
}

inline void stream_mixes(const Values* streams, int num_tokens, const MixWeights& weights,
                         const Mixes* out) {
  typed(streams[0], [&](auto* first) {
    decltype(first) rows[4] = {};
    for (int t = 0; t < num_tokens; ++t) rows[t] = static_cast<decltype(first)>(streams[t].data);
    if (num_tokens == 1) mixes_of<1>(rows, weights, out);
    if (num_tokens == 2) mixes_of<2>(rows, weights, out);
    if (num_tokens == 3) mixes_of<3>(rows, weights, out);
    if (num_tokens == 4) mixes_of<4>(rows, weights, out);
  });
}

inline void mix_streams(Values streams, const float* pre, std::int64_t columns, Results out) {
  typed(streams, [&](auto* x) {
    typed(out, [&](auto* target) {
      for (std::int64_t i = 0; i < columns; i += kLanes) {
        Lanes sum = load(x + i) * pre[0];
        for (int s = 1; s < kStreams; ++s) sum += load(x + s * columns + i) * pre[s];
        store(sum, target + i);
      }
    });
  });
}

inline void expand_streams(Values row, Values streams, const float* post, const float* comb,
                           std::int64_t columns, Results out) {
  typed(streams, [&](auto* x) {
    typed(row, [&](auto* added) {
      typed(out, [&](auto* target) {
        for (std::int64_t i = 0; i < columns; i += kLanes) {
          Lanes old[kStreams];
          for (int s = 0; s < kStreams; ++s) old[s] = load(x + s * columns + i);
          const Lanes fresh = load(added + i);
          for (int s = 0; s < kStreams; ++s) {
            Lanes sum = old[0] * comb[s];
            for (int from = 1; from < kStreams; ++from) sum += old[from] * comb[4 * from + s];
            store(sum + fresh * post[s], target + s * columns + i);
          }
        }
      });
    });
  });
}

// -- rotation -------------------------------------------------------------------------------------

// Every element twice, for the two columns of a pair.
DEEPINFER_INLINE Lanes load_twice(const float* x) {
  Eight eight;
  __builtin_memcpy(&eight, x, sizeof eight);
  return __builtin_shufflevector(eight, eight, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
}

template <class X, class Out>
void turn(const X* x, const float* cos, const float* sin, std::int64_t pairs, float direction,
          Out* out) {
  constexpr std::int64_t kPairs = kLanes / 2;
  const Lanes signs = {-1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1};
  std::int64_t pair = 0;
  for (; pair + kPairs <= pairs; pair += kPairs) {
    const Lanes v = load(x + 2 * pair);
    const Lanes swapped =
        __builtin_shufflevector(v, v, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14);
    const Lanes turned = swapped * (load_twice(sin + pair) * (signs * direction));
    store(v * load_twice(cos + pair) + turned, out + 2 * pair);
  }
  for (; pair < pairs; ++pair) {
    const float even = load_one(x + 2 * pair), odd = load_one(x + 2 * pair + 1);
    const float s = direction * sin[pair];
    store_one(even * cos[pair] - odd * s, out + 2 * pair);
    store_one(even * s + odd * cos[pair], out + 2 * pair + 1);
  }
}

template <class X, class Out>
void copy(const X* x, std::int64_t count, Out* out) {
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) store(load(x + i), out + i);
  for (; i < count; ++i) store_one(load_one(x + i), out + i);
}

template <class X>
void copy(const X* x, std::int64_t count, X* out) {
  __builtin_memcpy(out, x, static_cast<std::size_t>(count) * sizeof(X));
}

inline void rotate(Values x, std::int64_t columns, const float* cos, const float* sin,
                   std::int64_t pairs, float direction, Results out) {
  const std::int64_t straight = columns - 2 * pairs;
  typed(x, [&](auto* row) {
    typed(out, [&](auto* target) {
      copy(row, straight, target);
      turn(row + straight, cos, sin, pairs, direction, target + straight);
    });
  });
}

// -- experts, compressor, engram ------------------------------------------------------------------

inline void swiglu(Values gate, Values up, std::int64_t columns, float limit, Results out) {
  typed(gate, [&](auto* g) {
    auto* u = static_cast<decltype(g)>(up.data);
    typed(out, [&](auto* target) {
      for (std::int64_t i = 0; i < columns; i += kLanes) {
        const Lanes bounded = smaller(load(g + i), all_lanes(limit));
        const Lanes clamped = larger(smaller(load(u + i), all_lanes(limit)), all_lanes(-limit));
        store(bounded / (exponentials(-bounded) + 1.0f) * clamped, target + i);
      }
    });
  });
}

inline void add_rows(const Values* rows, std::int64_t num_rows, Values last, std::int64_t columns,
                     Results out) {
  typed(last, [&](auto* x) {
    typed(out, [&](auto* target) {
      for (std::int64_t i = 0; i < columns; i += kLanes) {
        Lanes sum{};
        for (std::int64_t r = 0; r < num_rows; ++r) {
          sum += load(static_cast<decltype(x)>(rows[r].data) + i);
        }
        store(sum + load(x + i), target + i);
      }
    });
  });
}

inline void pool_pair(const float* values, const float* scores, const float* other_values,
                      const float* other_scores, std::int64_t columns, float* out) {
  for (std::int64_t i = 0; i < columns; i += kLanes) {
    const Lanes a = load(scores + i), b = load(other_scores + i), highest = larger(a, b);
    const Lanes wa = exponentials(a - highest), wb = exponentials(b - highest), sum = wa + wb;
    store(wa / sum * load(values + i) + wb / sum * load(other_values + i), out + i);
  }
}

inline void add_memory(Values streams, Values keys, Values value,
                       const std::uint16_t* query_weight, const std::uint16_t* key_weight,
                       std::int64_t columns, float eps, Results out) {
  typed(streams, [&](auto* all_streams) {
    typed(keys, [&](auto* all_keys) {
      auto* v = static_cast<decltype(all_keys)>(value.data);
      typed(out, [&](auto* all_targets) {
        for (int s = 0; s < kStreams; ++s) {
          auto *x = all_streams + s * columns;
          auto *k = all_keys + s * columns;
          auto *target = all_targets + s * columns;
          Lanes dots{};
          for (std::int64_t i = 0; i < columns; i += kLanes) {
            const Lanes weight =
                load(query_weight + s * columns + i) * load(key_weight + s * columns + i);
            dots = fused(load(x + i) * weight, load(k + i), dots);
          }
          const float norm = inverse_root(sum_of_squares(x, columns), columns, eps) *
                             inverse_root(sum_of_squares(k, columns), columns, eps);
          const float dot = sum_of(dots) * norm / __builtin_sqrtf(static_cast<float>(columns));
          const float size = __builtin_fabsf(dot) < 1e-6f ? 1e-6f : __builtin_fabsf(dot);
          const float gate = sigmoid(__builtin_copysignf(__builtin_sqrtf(size), dot));
          for (std::int64_t i = 0; i < columns; i += kLanes) {
            store(load(x + i) + load(v + i) * gate, target + i);
          }
        }
      });
    });
  });
}

constexpr RowVersion kRowVersion = {&rms_norm, &stream_mixes, &mix_streams, &expand_streams,
                                    &rotate,   &swiglu,       &add_rows,    &pool_pair,
                                    &add_memory};
