// One version's attention. Included after rowwise_body.h. Tiles repeat their last head or key where
// there are fewer; what they compute for one does not depend on its neighbours.

constexpr int kTileHeads = 4;
constexpr int kTileKeys = 4;

template <class T>
DEEPINFER_INLINE T at_most(T a, T b) {
  return a < b ? a : b;
}

DEEPINFER_INLINE Words load_pairs(const Bf16* x) {
  Words pairs;
  __builtin_memcpy(&pairs, x, sizeof pairs);
  return pairs;
}

// 32 columns of a query, in order or split, times those of a key.
DEEPINFER_INLINE Lanes add_products(const Bf16* query, Words key, Lanes sum) {
  return add_pairs(load_pairs(query), key, sum);
}

DEEPINFER_INLINE Lanes add_products(const float* query, Words key, Lanes sum) {
  return fused(load(query + kLanes), even_values(key), fused(load(query), odd_values(key), sum));
}

// Scores of kTileHeads heads by kTileKeys keys.
template <class Q>
inline void score_tile(const Q* const* query, const Bf16* const* keys, std::int64_t width,
                       float (*out)[kTileKeys]) {
  Lanes sums[kTileHeads][kTileKeys] = {};
  for (std::int64_t i = 0; i < width; i += kChunk) {
    Words key[kTileKeys];
    for (int k = 0; k < kTileKeys; ++k) key[k] = load_pairs(keys[k] + i);
    for (int h = 0; h < kTileHeads; ++h) {
      for (int k = 0; k < kTileKeys; ++k) {
        sums[h][k] = add_products(query[h] + i, key[k], sums[h][k]);
      }
    }
  }
  for (int h = 0; h < kTileHeads; ++h) {
    for (int k = 0; k < kTileKeys; ++k) out[h][k] = sum_of(sums[h][k]);
  }
}

// Scores [padded] to weights, zero beyond count; returns the denominator.
inline float softmax(float* scores, std::int64_t count, std::int64_t padded, float sink) {
  for (std::int64_t i = count; i < padded; ++i) scores[i] = scores[0];
  Lanes maxima = load(scores);
  for (std::int64_t i = kLanes; i < padded; i += kLanes) maxima = larger(maxima, load(scores + i));
  float highest = maxima[0];
  for (int i = 1; i < kLanes; ++i) highest = maxima[i] > highest ? maxima[i] : highest;
  for (std::int64_t i = 0; i < padded; i += kLanes) {
    store(exponentials(load(scores + i) - highest), scores + i);
  }
  for (std::int64_t i = count; i < padded; ++i) scores[i] = 0.0f;
  Lanes sum{};
  for (std::int64_t i = 0; i < padded; i += kLanes) sum += load(scores + i);
  const float above = sink - highest;
  return sum_of(sum) + exponential(above < -87.0f ? -87.0f : (above > 88.0f ? 88.0f : above));
}

// Weighted sums of D * 16 columns for kTileHeads heads.
template <int D>
inline void value_tile(const float* const* weights, const TokenKeys& keys, std::int64_t column,
                       Lanes (*sums)[D]) {
  for (int h = 0; h < kTileHeads; ++h) {
    for (int d = 0; d < D; ++d) sums[h][d] = Lanes{};
  }
  for (std::int64_t key = 0; key < keys.count; ++key) {
    Lanes values[D];
    for (int d = 0; d < D; ++d) values[d] = load(keys.rows[key] + column + d * kLanes);
    for (int h = 0; h < kTileHeads; ++h) {
      const Lanes weight = all_lanes(weights[h][key]);
      for (int d = 0; d < D; ++d) sums[h][d] = fused(weight, values[d], sums[h][d]);
    }
  }
}

template <int D>
inline void sum_values(const TokenKeys& keys, const float* const* weights, const float* denominators,
                       int num_heads, std::int64_t column, Results out) {
  Lanes sums[kTileHeads][D];
  value_tile<D>(weights, keys, column, sums);
  typed(out, [&](auto* target) {
    for (int h = 0; h < num_heads; ++h) {
      for (int d = 0; d < D; ++d) {
        store(sums[h][d] / denominators[h], target + h * keys.width + column + d * kLanes);
      }
    }
  });
}

template <class Q>
inline void attend_to(const TokenKeys& keys, const Q* query, int num_heads, const float* sink,
                      float scale, float* scratch, Results out) {
  const std::int64_t padded = (keys.count + kLanes - 1) / kLanes * kLanes;
  for (int first = 0; first < num_heads; first += kTileHeads) {
    const int heads = at_most(kTileHeads, num_heads - first);
    const Q* queries[kTileHeads];
    float* scores[kTileHeads];
    for (int h = 0; h < kTileHeads; ++h) {
      const int head = first + at_most(h, heads - 1);
      queries[h] = query + head * keys.width;
      scores[h] = scratch + head * padded;
    }
    for (std::int64_t key = 0; key < keys.count; key += kTileKeys) {
      const Bf16* rows[kTileKeys];
      for (int k = 0; k < kTileKeys; ++k) {
        rows[k] = keys.rows[at_most<std::int64_t>(key + k, keys.count - 1)];
      }
      float tile[kTileHeads][kTileKeys];
      score_tile(queries, rows, keys.width, tile);
      for (int h = 0; h < heads; ++h) {
        for (int k = 0; k < kTileKeys && key + k < keys.count; ++k) {
          scores[h][key + k] = tile[h][k] * scale;
        }
      }
    }
    float denominators[kTileHeads];
    for (int h = 0; h < heads; ++h) {
      denominators[h] = softmax(scores[h], keys.count, padded, sink[first + h]);
    }
    const Results rows = out.from(first * keys.width);
    std::int64_t column = 0;
    for (; column + 4 * kLanes <= keys.width; column += 4 * kLanes) {
      sum_values<4>(keys, scores, denominators, heads, column, rows);
    }
    for (; column < keys.width; column += kLanes) {
      sum_values<1>(keys, scores, denominators, heads, column, rows);
    }
  }
}

inline void attend(const TokenKeys& keys, Values query, int num_heads, const float* sink,
                   float scale, float* scratch, Results out) {
  typed(query,
        [&](auto* q) { attend_to(keys, q, num_heads, sink, scale, scratch, out); });
}

inline void split(const float* x, std::int64_t count, float* out) {
  for (std::int64_t i = 0; i < count; i += kChunk) split_chunk(x + i, out + i);
}

DEEPINFER_INLINE Lanes to_bf16_and_back(Lanes x) {
  Bf16 halves[kLanes];
  store(x, halves);
  return load(halves);
}

inline void index_totals(const float* dots, const float* weights, int num_heads, bool rounded,
                         float* out) {
  for (int part = 0; part < 32; part += kLanes) {
    Lanes total{};
    for (int head = 0; head < num_heads; ++head) {
      Lanes dot = load(dots + head * 32 + part);
      if (rounded) dot = to_bf16_and_back(dot);
      Lanes product = (dot == dot ? larger(dot, Lanes{}) : dot) * weights[head];
      if (rounded) product = to_bf16_and_back(product);
      total = head == 0 ? product : total + product;
    }
    store(rounded ? to_bf16_and_back(total) : total, out + part);
  }
}

constexpr AttentionVersion kAttentionVersion = {&attend, &split, &index_totals};
