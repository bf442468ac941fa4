#include "tests/actors/groups/group_actors.h"
#include "troupe/actor.h"

int main(int argc, char** argv) {
  using namespace troupe::tests;
  return troupe::host_main(argc, argv, troupe::actors<Member, Foreman, Ranked>).value_or(2);
}
