// The program whose processes host the actors of segments_test.cpp.

#include "actors/host.h"
#include "tests/actors/segment_actors.h"

int main(int argc, char** argv) {
  return troupe::host_main(argc, argv, troupe::actors<troupe::tests::Memory>).value_or(2);
}
