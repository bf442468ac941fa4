#pragma once
// types.h to and from types.capnp. Private to this folder.

#include <fmt/format.h>

#include <map>
#include <string>
#include <vector>

#include "runtime/wire/codec.h"
#include "runtime/wire/gpu.h"
#include "runtime/wire/types.capnp.h"
#include "runtime/wire/types.h"

namespace troupe::wire::codec {

void write(schema::Endpoint::Builder out, const Endpoint& value);
void write(schema::ActorSpec::Builder out, const ActorSpec& value);
void write(schema::ActorInfo::Builder out, const ActorInfo& value);
void write(schema::NodeInfo::Builder out, const NodeInfo& value);
void write(schema::ExitStatus::Builder out, const ExitStatus& value);
void write(schema::EventRecord::Builder out, const EventRecord& value);
void write(schema::Status::Builder out, const Status& value);
void write(schema::PlacementGroupSpec::Builder out, const PlacementGroupSpec& value);
void write(schema::PlacementGroupInfo::Builder out, const PlacementGroupInfo& value);
void write(schema::Reservation::Builder out, const Reservation& value);
void write(schema::JobInfo::Builder out, const JobInfo& value);
void write(schema::SupervisorSpec::Builder out, const SupervisorSpec& value);
void write(schema::SupervisorInfo::Builder out, const SupervisorInfo& value);
void write(schema::GpuStatus::Builder out, const GpuStatus& value);

Endpoint read(schema::Endpoint::Reader in);
ActorSpec read(schema::ActorSpec::Reader in);
ActorInfo read(schema::ActorInfo::Reader in);
NodeInfo read(schema::NodeInfo::Reader in);
ExitStatus read(schema::ExitStatus::Reader in);
EventRecord read(schema::EventRecord::Reader in);
PlacementGroupSpec read(schema::PlacementGroupSpec::Reader in);
PlacementGroupInfo read(schema::PlacementGroupInfo::Reader in);
Reservation read(schema::Reservation::Reader in);
JobInfo read(schema::JobInfo::Reader in);
SupervisorSpec read(schema::SupervisorSpec::Reader in);
SupervisorInfo read(schema::SupervisorInfo::Reader in);
GpuStatus read(schema::GpuStatus::Reader in);
// A null status is ok.
Status read(schema::Status::Reader in);

template <typename Enum>
Enum read_enum(std::uint8_t number, Enum last, const char* name) {
  if (number > static_cast<std::uint8_t>(last)) {
    throw Malformed{fmt::format("'{}' is {}, which this version does not know", name, number)};
  }
  return static_cast<Enum>(number);
}

template <typename Tag>
void write(schema::Id::Builder out, const troupe::Id<Tag>& id) {
  out.setHigh(id.high);
  out.setLow(id.low);
}
template <typename IdType>
IdType read_id(schema::Id::Reader in) {
  return {in.getHigh(), in.getLow()};
}

// Writes `values` into the list that `init(count)` makes, each by `write_one(builder, value)`.
template <typename Init, typename T, typename WriteOne>
void write_list(Init&& init, const std::vector<T>& values, WriteOne&& write_one) {
  auto list = init(static_cast<capnp::uint>(values.size()));
  for (capnp::uint i = 0; i < values.size(); ++i) write_one(list[i], values[i]);
}

// A vector of what `read_one` makes of each element.
template <typename List, typename ReadOne>
auto read_list(const List& list, const char* name, ReadOne&& read_one) {
  std::vector<decltype(read_one(list[0]))> values;
  values.reserve(checked_count(list, name));
  for (const auto& element : list) values.push_back(read_one(element));
  return values;
}

}  // namespace troupe::wire::codec
