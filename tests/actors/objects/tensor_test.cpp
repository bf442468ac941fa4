// Arrays of several dimensions: their own rules, as values, as objects, and for others (DLPack).

#include "troupe/tensor.h"

#include <doctest/doctest.h>

#include <limits>
#include <numeric>
#include <vector>

#include "tests/actors/objects/test_actors.h"
#include "tests/support/test_data.h"
#include "troupe/cluster.h"
#include "troupe/dlpack.h"

namespace troupe::tests {
namespace {

std::vector<int> counted(int count) {
  std::vector<int> values(static_cast<std::size_t>(count));
  std::iota(values.begin(), values.end(), 0);
  return values;
}

TEST_CASE("a view finds its elements by shape and strides") {
  std::vector<int> values = counted(24);
  const auto view = TensorView<int>::of(values, {2, 3, 4}).value();
  CHECK(view.size() == 24);
  CHECK(view.contiguous());
  CHECK(view(1, 2, 3) == 23);
  CHECK(view[1].shape() == TensorShape{3, 4});
  CHECK(view[1](0, 1) == 13);
  CHECK(view[1][2].values()[3] == 23);
  const auto part = view.slice(1, 1, 3);
  CHECK(part.shape() == TensorShape{2, 2, 4});
  CHECK(part(0, 0, 0) == 4);
  CHECK_FALSE(part.contiguous());
  const auto turned = view.transposed();
  CHECK(turned.shape() == TensorShape{4, 3, 2});
  CHECK(turned(3, 2, 1) == 23);
  CHECK(Tensor<int>(turned).values()[1] == 12);
  CHECK(Tensor<int>(part).values()[8] == 16);
  view(0, 0, 0) = 7;
  CHECK(values[0] == 7);

  const auto diagonal = TensorView<const int>::of(values, {3}, {9}).value();
  CHECK(diagonal(2) == 18);
  const auto scalar = TensorView<int>::of(std::span(values).first(1), {}).value();
  CHECK(scalar.size() == 1);
  CHECK(scalar() == 7);
}

TEST_CASE("shapes that do not fit are refused") {
  std::vector<int> values(6);
  const auto code = [&](TensorShape shape, TensorShape strides) {
    return TensorView<int>::of(values, std::move(shape), std::move(strides)).status().code();
  };
  CHECK(code({2, 3}, {3, 1}) == Code::kOk);
  CHECK(code({2, 3}, {4, 1}) == Code::kInvalidArgument);
  CHECK(code({2, 3}, {3}) == Code::kInvalidArgument);
  CHECK(code({2}, {-1}) == Code::kInvalidArgument);
  CHECK(code({-2}, {1}) == Code::kInvalidArgument);
  CHECK(code({0, 9}, {100, 100}) == Code::kOk);
  constexpr auto kLarge = std::numeric_limits<std::int64_t>::max();
  CHECK(code({kLarge, kLarge}, {1, 1}) == Code::kInvalidArgument);
  CHECK(code({2, 2}, {kLarge, kLarge}) == Code::kInvalidArgument);
  CHECK(TensorView<int>::of(values, {2, 2}).status().code() == Code::kInvalidArgument);
  CHECK(Tensor<int>::of({1, 2, 3}, {4}).status().code() == Code::kInvalidArgument);
  CHECK(Tensor<int>::zeros(TensorShape(65, 1)).status().code() == Code::kInvalidArgument);
}

TEST_CASE("a damaged tensor is no tensor") {
  const auto tensor = Tensor<int>::of(counted(6), {2, 3}).value();
  auto bytes = encode_value(tensor);
  CHECK(decode_value<Tensor<int>>(bytes).value() == tensor);
  bytes[4] = std::byte{9};  // the first dimension
  CHECK_FALSE(decode_value<Tensor<int>>(bytes).ok());

  using Layout = ObjectLayout<Tensor<int>>;
  std::vector<std::byte> object(Layout::bytes_in(tensor.view()));
  Layout::write(tensor.view(), object);
  CHECK(Layout::check(object).ok());
  CHECK_FALSE(Layout::check(std::span(object).first(object.size() - 4)).ok());
  CHECK_FALSE(Layout::check(std::span(object).first(3)).ok());
  for (const auto& [at, value] : {std::pair{0, 200}, {7, 255}, {8, 3}, {15, 255}}) {
    auto damaged = object;
    damaged[static_cast<std::size_t>(at)] = static_cast<std::byte>(value);
    CHECK_FALSE(Layout::check(damaged).ok());
  }
}

TEST_CASE("tensors are arguments, results, and objects that are read in place") {
  auto cluster =
      Cluster::start_embedded({.num_cpus = 2, .program = bin_dir() + "/test_actors_objects_host"})
          .value();
  const auto reader = cluster.spawn<Reader>({}).value();
  const auto tensor = Tensor<int>::of(counted(6), {2, 3}).value();
  const auto turned = reader.call<&Reader::turned>(tensor).get().value();
  CHECK(turned.shape() == TensorShape{3, 2});
  CHECK(turned.values()[1] == 3);

  const auto ref = cluster.put(tensor).value();
  CHECK(reader.call<&Reader::element>(ref, 1, 2).get().value() == 5);
  const auto object = ref.get().value();
  CHECK((*object)(1, 0) == 3);
  CHECK(reinterpret_cast<std::uintptr_t>((*object).data()) % detail::kObjectAlignment == 0);
  CHECK(object.copy() == tensor);
  // A view that has gaps is put without them.
  const ObjectRef<Tensor<int>> part = cluster.put(tensor.view().slice(1, 1, 3)).value();
  CHECK((*part.get().value()).contiguous());
  CHECK(reader.call<&Reader::element>(part, 1, 1).get().value() == 5);
}

TEST_CASE("a DLPack tensor keeps the object that it is of") {
  auto cluster = Cluster::start_embedded({.num_cpus = 1}).value();
  dlpack::ManagedTensor* plain = nullptr;
  dlpack::ManagedTensorVersioned* versioned = nullptr;
  {
    const auto tensor = Tensor<double>::of({1, 2, 3, 4, 5, 6}, {2, 3}).value();
    const auto object = cluster.put(tensor).value().get().value();
    plain = to_dlpack(object);
    versioned = to_dlpack_versioned(object);
    CHECK(plain->dl_tensor.data == (*object).data());
  }
  // The offsets of dlpack.h on 64-bit machines.
  static_assert(sizeof(dlpack::TensorData) == 48 && sizeof(dlpack::ManagedTensor) == 64);
  static_assert(sizeof(dlpack::ManagedTensorVersioned) == 80);
  CHECK(cluster.object_store().value().objects == 1);
  CHECK(static_cast<const double*>(plain->dl_tensor.data)[5] == 6);
  CHECK(plain->dl_tensor.ndim == 2);
  CHECK(plain->dl_tensor.shape[1] == 3);
  CHECK(plain->dl_tensor.strides[0] == 3);
  CHECK(plain->dl_tensor.device.type == 1);
  CHECK(plain->dl_tensor.dtype.code == dlpack::kFloat);
  CHECK(plain->dl_tensor.dtype.bits == 64);
  plain->deleter(plain);
  CHECK(versioned->version.major == 1);
  CHECK(versioned->flags == dlpack::kReadOnly);
  CHECK(static_cast<const double*>(versioned->dl_tensor.data)[0] == 1);
  versioned->deleter(versioned);
  const Deadline patience = Deadline::after(std::chrono::seconds(20));
  while (cluster.object_store().value().objects > 0 && !patience.passed())
    std::this_thread::yield();
  CHECK(cluster.object_store().value().objects == 0);
}

TEST_CASE("futures are arguments: the call is made when they are there") {
  auto cluster =
      Cluster::start_embedded({.num_cpus = 2, .program = bin_dir() + "/test_actors_objects_host"})
          .value();
  const auto reader = cluster.spawn<Reader>({}).value();
  // The result of one is a reference: it goes on, and the numbers stay where they are.
  CHECK(reader.call<&Reader::sum>(reader.call<&Reader::make>(10, 3.0f)).get().value() == 30);
  CHECK(reader.call<&Reader::keep>(reader.call<&Reader::make>(10, 2.0f)).get().ok());
  CHECK(reader.call<&Reader::sum_of_kept>().get().value() == 20);

  Promise<std::size_t> count;
  auto made = reader.call<&Reader::make>(count.future(), 1.0f);
  CHECK_FALSE(made.ready());
  count.set(std::size_t{7});
  CHECK(made.get().value().bytes() == 7 * sizeof(float));

  Promise<std::size_t> failed;
  auto fails = reader.call<&Reader::make>(failed.future(), 1.0f);
  failed.set(Status(Code::kDataLoss, "no count"));
  CHECK(fails.get().status().code() == Code::kDataLoss);

  Promise<std::size_t> never;
  auto cancelled = reader.call<&Reader::make>(never.future(), 1.0f);
  cancelled.cancel();
  CHECK(cancelled.get().status().code() == Code::kCancelled);
  CHECK_FALSE(never.set(std::size_t{1}));  // it was cancelled with it

  Promise<std::size_t> late;
  auto waits = reader.call<&Reader::make>(late.future(), 1.0f);
  CHECK(waits.get(std::chrono::milliseconds(1)).status().code() == Code::kDeadlineExceeded);
  CHECK(ActorHandle<Reader>()
            .call<&Reader::make>(Promise<std::size_t>().future(), 1.0f)
            .get()
            .status()
            .code() == Code::kFailedPrecondition);
}

}  // namespace
}  // namespace troupe::tests
