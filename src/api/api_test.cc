// Uses the public headers only, as an application does.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <random>

#include "deltawire/deltawire.h"

namespace {

uint16_t Bf16(float value) {
  uint32_t word;
  std::memcpy(&word, &value, 4);
  return static_cast<uint16_t>((word + 0x7FFF + ((word >> 16) & 1)) >> 16);
}

class PublicApi : public testing::Test {
 protected:
  PublicApi() {
    std::mt19937_64 seed(std::random_device{}());
    root_ = std::filesystem::temp_directory_path() / ("deltawire-api-" + std::to_string(seed()));
    std::filesystem::create_directory(root_);
    std::normal_distribution<float> weights(0.0f, 0.02f);
    for (float& x : theta_) x = weights(rng_);
  }
  ~PublicApi() override { std::filesystem::remove_all(root_); }

  deltawire::SourceTensor Source() const {
    return {.name = "w",
            .aliases = {},
            .data = theta_.data(),
            .dtype = "F32",
            .shape = {60, 50},
            .strides = {},
            .served_dtype = "BF16",
            .detector = deltawire::Detector::kInversion,
            .step = 0};
  }
  void Train() {
    ++step_;
    const auto rate = static_cast<float>(1e-4 / (1 - std::pow(0.9, step_)));
    const auto bias = static_cast<float>(std::sqrt(1 - std::pow(0.999, step_)));
    std::normal_distribution<float> gradients(0.0f, 1e-3f);
    for (size_t i = 0; i < theta_.size(); ++i) {
      const float g = gradients(rng_);
      m_[i] += 0.1f * (g - m_[i]);
      v_[i] = 0.999f * v_[i] + 0.001f * g * g;
      theta_[i] -= rate * (m_[i] / (std::sqrt(v_[i]) / bias + 1e-8f));
    }
  }
  std::vector<uint16_t> Served() const {
    std::vector<uint16_t> out;
    for (const float x : theta_) out.push_back(Bf16(x));
    return out;
  }

  std::filesystem::path root_;
  std::mt19937 rng_{3};
  std::vector<float> theta_ = std::vector<float>(3000), m_ = theta_, v_ = theta_;
  int step_ = 0;
};

TEST_F(PublicApi, PublishesAndFollows) {
  deltawire::PublishOptions options;
  options.url = (root_ / "run").string();
  auto publisher = deltawire::Publisher::Open(options, {Source()});
  ASSERT_TRUE(publisher) << publisher.error().message;
  EXPECT_EQ(publisher->opened().number, 0u);
  std::vector<uint16_t> live(3000, 0);
  auto engine = deltawire::Subscriber::Open(options.url, {{"w", live.data(), "BF16", {60, 50}, {}}});
  ASSERT_TRUE(engine);
  for (uint64_t number = 1; number <= 3; ++number) {
    ASSERT_TRUE(publisher->BeforeStep({0}));
    Train();
    ASSERT_TRUE(publisher->AfterStep({{.tensor = 0,
                                       .lr = 1e-4,
                                       .weight_decay = 0,
                                       .beta1 = 0.9,
                                       .beta2 = 0.999,
                                       .eps = 1e-8,
                                       .step = static_cast<uint64_t>(step_),
                                       .m = m_.data(),
                                       .v = v_.data()}}));
    ASSERT_TRUE(publisher->Publish());
    const auto updated = engine->Update();
    ASSERT_TRUE(updated) << updated.error().message;
    EXPECT_EQ(updated->number, number);
    EXPECT_EQ(live, Served());
  }
  ASSERT_TRUE(engine->Verify());
  ASSERT_TRUE(engine->Rollback());
  EXPECT_EQ(engine->version()->number, 2u);
  const auto again = deltawire::Publisher::Open(options, {Source()});
  ASSERT_FALSE(again);
  EXPECT_EQ(again.error().code, "exists");
}

TEST_F(PublicApi, BadInputIsNamed) {
  auto source = Source();
  source.dtype = "FLOAT";
  deltawire::PublishOptions options;
  options.url = (root_ / "run").string();
  const auto refused = deltawire::Publisher::Open(options, {source});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, "invalid_argument");
  EXPECT_NE(refused.error().message.find("FLOAT"), std::string::npos);
  EXPECT_FALSE(deltawire::Diff((root_ / "a").string(), (root_ / "b").string(), (root_ / "p").string()));
}

}  // namespace
