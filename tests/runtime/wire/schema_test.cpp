// The schema of all messages, and that the layout which runtime/wire computes is what Cap'n Proto's
// own compiler makes of it.

#include <capnp/schema-parser.h>
#include <doctest/doctest.h>
#include <kj/filesystem.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "runtime/wire/call_messages.h"
#include "runtime/wire/control_messages.h"
#include "runtime/wire/host_messages.h"
#include "runtime/wire/keeper_messages.h"
#include "runtime/wire/object_messages.h"
#include "tests/runtime/wire/schema_text.h"
#include "tests/support/test_data.h"

namespace troupe::wire {
namespace {

SchemaText schema_of_all() {
  SchemaText schema;
  schema.add_family<ControlMessage>("ControlMessage");
  schema.add_family<HostMessage>("HostMessage");
  schema.add_family<KeeperMessage>("KeeperMessage");
  schema.add_family<ObjectMessage>("ObjectMessage");
  schema.add_family<CallMessage>("CallMessage");
  return schema;
}

std::string file_of(const SchemaText& schema) {
  return "# What processes tell each other (runtime/wire), as Cap'n Proto encodes it. Made by\n"
         "# tests/runtime/wire/schema_test.cpp from the lists beside the structs: do not edit.\n"
         "@0xb1d3c5e7f9a10203;\n" +
         schema.text();
}

TEST_CASE("tests/golden/wire.capnp is the schema of all messages") {
  const std::string path = tests::source_dir() + "/tests/golden/wire.capnp";
  const std::string made = file_of(schema_of_all());
  if (std::getenv("TROUPE_WRITE_SCHEMA") != nullptr) std::ofstream(path) << made;
  std::stringstream kept;
  kept << std::ifstream(path).rdbuf();
  CHECK_MESSAGE(kept.str() == made,
                "run this test with TROUPE_WRITE_SCHEMA=1, and look at what "
                "changed: fields and messages may only be added, at the end");
}

TEST_CASE("fields lie where Cap'n Proto's compiler puts them") {
  const SchemaText schema = schema_of_all();
  const auto folder = kj::newInMemoryDirectory(kj::nullClock());
  const kj::Path path("wire.capnp");
  folder->openFile(path, kj::WriteMode::CREATE)->writeAll(file_of(schema).c_str());
  const capnp::SchemaParser parser;
  const capnp::ParsedSchema compiled = parser.parseFromDirectory(*folder, path.clone(), nullptr);
  for (const auto& entry : schema.structs()) {
    const std::string& name = entry.first;
    const SchemaText::Struct& ours = entry.second;
    INFO(name);
    const capnp::StructSchema theirs = compiled.getNested(name.c_str()).asStruct();
    CHECK(theirs.getProto().getStruct().getDataWordCount() == ours.data_words);
    CHECK(theirs.getProto().getStruct().getPointerCount() == ours.pointers);
    REQUIRE(theirs.getFields().size() == ours.places.size());
    for (const auto& field : ours.places) {
      INFO(field.first);
      const capnp::StructSchema::Field found = theirs.getFieldByName(field.first.c_str());
      CHECK(found.getProto().getSlot().getOffset() == field.second);
    }
  }
  const capnp::StructSchema family = compiled.getNested("ControlMessage").asStruct();
  CHECK(family.getProto().getStruct().getDataWordCount() == 1);
  CHECK(family.getProto().getStruct().getPointerCount() == 1);
  CHECK(family.getProto().getStruct().getDiscriminantOffset() == 0);
}

}  // namespace
}  // namespace troupe::wire
