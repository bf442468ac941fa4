#include "actors/session/light_batch.h"

#include "runtime/base/status.h"
#include "troupe/serialize.h"

namespace troupe::detail {

void LightBatch::write(Encoder& out) const {
  out.put(method);
  out.put(one_each);
  out.put_count(runs.size());
  for (const LightRun& run : runs) {
    out.put(run.first);
    out.put(run.count);
  }
}

bool LightBatch::read(Decoder& in, std::size_t numbers_end) {
  std::size_t count = 0;
  if (!in.get(method) || !in.get(one_each) || !in.get_count(count, sizeof(LightRun))) return false;
  runs.resize(count);
  std::size_t numbers = 0;
  for (LightRun& run : runs) {
    if (!in.get(run.first) || !in.get(run.count)) return false;
    numbers += run.count;
    // (No caller names one twice: so long lists of runs cannot stand for endless work.)
    if (run.first >= numbers_end || run.count > numbers_end - run.first || numbers > numbers_end) {
      return in.fail("numbers of light actors that the host has no room for");
    }
  }
  return true;
}

void put_light_arguments(Encoder& out, std::span<const std::byte> arguments) {
  out.put_count(arguments.size());
  out.append(arguments.data(), arguments.size());
}

bool get_light_arguments(Decoder& in, std::span<const std::byte>& arguments) {
  std::size_t bytes = 0;
  return in.get_count(bytes, 1) && in.get_view(arguments, bytes);
}

void put_light_answer(Encoder& out, const Result<Bytes>& answer) {
  out.put(!answer.ok());
  if (answer.ok()) {
    put_light_arguments(out, *answer);
  } else {
    Codec<Status>::encode(out, answer.status());
  }
}

Status get_light_answer(Decoder& in, std::span<const std::byte>& result) {
  bool failed = false;
  Status status;
  const bool read = in.get(failed) &&
                    (failed ? Codec<Status>::decode(in, status) : get_light_arguments(in, result));
  if (!read) return in.status();
  if (failed && status.ok()) return error(Code::kProtocol, "a failure that does not say which");
  return status;
}

}  // namespace troupe::detail
