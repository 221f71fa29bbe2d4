#include "codec/frequency_table.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "base/rng.h"
#include "codec/bucket.h"
#include "codec/table_plan.h"

namespace deltawire::codec {
namespace {

FrequencyTable ExpectRoundTrip(const Histogram& histogram) {
  const FrequencyTable table = FitTable(histogram);
  for (size_t s = 0; s < kMaxSymbols; ++s) EXPECT_EQ(table.frequency[s] > 0, histogram[s] > 0) << s;
  BitWriter writer;
  WriteTable(table, writer);
  Bytes bytes;
  writer.AppendTo(bytes);
  BitReader reader(bytes);
  const auto back = ReadTable(reader);
  EXPECT_TRUE(back) << back.error().message();
  EXPECT_TRUE(reader.UsedUpExactly());
  EXPECT_TRUE(back && back->frequency == table.frequency);
  return table;
}

double EntropyBits(const Histogram& histogram) {
  const auto total = static_cast<double>(std::accumulate(histogram.begin(), histogram.end(), uint64_t{0}));
  double bits = 0;
  for (const uint64_t n : histogram) {
    if (n > 0) bits += static_cast<double>(n) * std::log2(total / static_cast<double>(n));
  }
  return bits;
}

TEST(FrequencyTable, RoundTripOfHistogramsOfEveryShape) {
  ExpectRoundTrip({});
  SeededRng rng(31);
  for (int round = 0; round < 300; ++round) {
    Histogram histogram{};
    const uint64_t symbols = 1 + rng.Next() % 256;
    for (uint64_t i = 0; i < symbols; ++i)
      histogram[rng.Next() % 256] += rng.Next() >> (rng.Next() % 50 + 14);
    ExpectRoundTrip(histogram);
  }
  Histogram flat;
  flat.fill(1);
  ExpectRoundTrip(flat);
  flat[255] = uint64_t{1} << 40;  // the rest share what little is left
  ExpectRoundTrip(flat);
  Histogram one{};
  one[200] = 1;
  EXPECT_EQ(ExpectRoundTrip(one).frequency[200], kFrequencySum);
}

TEST(FrequencyTable, CostsLittleMoreThanEntropy) {
  Histogram geometric{};
  for (unsigned bucket = 0; bucket < 50; ++bucket) {
    const auto low = static_cast<double>(BucketBase(bucket));
    const auto high = static_cast<double>(BucketBase(bucket + 1));
    geometric[bucket] = static_cast<uint64_t>(1e6 * (std::exp(-low / 300) - std::exp(-high / 300)));
  }
  const FrequencyTable table = FitTable(geometric);
  EXPECT_LT(CodeLengthBits(geometric, table), 1.003 * EntropyBits(geometric));
}

TEST(FrequencyTable, MalformedTablesAreCorrupt) {
  const auto parse = [](std::initializer_list<std::pair<uint64_t, unsigned>> fields) {
    BitWriter writer;
    for (const auto& [value, bits] : fields) writer.Put(value, bits);
    Bytes bytes;
    writer.AppendTo(bytes);
    BitReader reader(bytes);
    return ReadTable(reader).has_value();
  };
  EXPECT_TRUE(parse({{1, 1}, {0, 8}, {0, 8}, {0, 4}}));
  EXPECT_FALSE(parse({{1, 1}, {0, 8}, {1, 8}, {0, 4}}));               // implied symbol above the last
  EXPECT_FALSE(parse({{1, 1}, {0, 8}, {0, 8}, {12, 4}}));              // precision
  EXPECT_FALSE(parse({{1, 1}, {1, 8}, {0, 8}, {0, 4}, {0b11, 2}}));    // the last symbol has frequency 0
  EXPECT_FALSE(parse({{1, 1}, {1, 8}, {0, 8}, {0, 4}, {0b010, 3}}));   // token -1
  EXPECT_FALSE(parse({{1, 1}, {1, 8}, {0, 8}, {0, 4}, {0, 20}}));      // no token so long
  EXPECT_FALSE(parse({{1, 1}, {1, 8}, {0, 8}, {0, 4}, {0b0101, 4}}));  // a run of one more absent symbol
  // Token 13: a frequency of 4096 leaves nothing for the implied symbol. 13 is coded as 4 zeros, 1, 1011.
  EXPECT_FALSE(parse({{1, 1}, {1, 8}, {0, 8}, {0, 4}, {0b1011'10000, 9}}));
}

TEST(Bucket, CoversEveryValueOnce) {
  for (unsigned bucket = 0; bucket + 1 < kMagnitudeBuckets; ++bucket) {
    EXPECT_EQ(BucketBase(bucket) + (uint64_t{1} << BucketExtraBits(bucket)), BucketBase(bucket + 1));
  }
  for (uint64_t value = 0; value < 5000; ++value) {
    const Bucketed b = ToBucket(value);
    EXPECT_EQ(BucketBase(b.bucket) + b.extra, value);
    EXPECT_EQ(BucketExtraBits(b.bucket), b.extra_bits);
    EXPECT_LT(b.extra, uint64_t{1} << b.extra_bits);
  }
  EXPECT_LT(ToBucket((1 << 21) - 1).bucket, kGapBuckets);
  EXPECT_LT(ToBucket(uint64_t{1} << 63).bucket, kMagnitudeBuckets);
}

TEST(BitStream, RoundTripOfEveryLength) {
  BitWriter writer;
  BitWriter::Batch batch = writer.Begin(2 * 65 * 65);
  for (unsigned count = 0; count <= 64; ++count) {
    batch.PutLong(count == 0 ? 0 : ~uint64_t{0} >> (64 - count), count);
    batch.PutLong(0, count);
  }
  writer.Commit(batch);
  Bytes bytes;
  writer.AppendTo(bytes);
  EXPECT_EQ(bytes.size(), (writer.bit_count() + 7) / 8);
  BitReader reader(bytes);
  for (unsigned count = 0; count <= 64; ++count) {
    EXPECT_EQ(reader.ReadLong(count), count == 0 ? 0 : ~uint64_t{0} >> (64 - count)) << count;
    EXPECT_EQ(reader.ReadLong(count), 0u);
  }
  EXPECT_TRUE(reader.UsedUpExactly());
  EXPECT_EQ(reader.Read(56), 0u);
  EXPECT_FALSE(reader.UsedUpExactly());
}

TEST(TablePlan, UnlikeClustersKeepTheirTablesAndLikeOnesShare) {
  const auto cluster = [](unsigned symbol, uint64_t count) {
    Cluster c;
    for (unsigned i = 0; i < 8; ++i) c.symbols[symbol + i] = count;
    c.plain_bits = 16 * 8 * count;
    return c;
  };
  Cluster clusters[] = {cluster(0, 1000), cluster(0, 1100), cluster(20, 1000), cluster(40, 1)};
  clusters[3].plain_bits = 50;
  const TablePlan plan = PlanTables(clusters);
  ASSERT_EQ(plan.table_of.size(), 4u);
  EXPECT_EQ(plan.table_of[0], plan.table_of[1]);
  EXPECT_NE(plan.table_of[1], plan.table_of[2]);
  EXPECT_EQ(plan.table_of[3], kNoTable);
  EXPECT_EQ(plan.tables.size(), 2u);
}

TEST(TablePlan, FewSymbolsGetNoTable) {
  Cluster few;
  few.symbols[100] = 1;
  few.coded_bits = 40;
  few.plain_bits = 48;
  const TablePlan plan = PlanTables({&few, 1});
  EXPECT_TRUE(plan.tables.empty());
  EXPECT_EQ(plan.table_of[0], kNoTable);
}

}  // namespace
}  // namespace deltawire::codec
