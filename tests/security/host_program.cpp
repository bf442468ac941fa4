// Hosts the tests' actor, and is the keeper of the tests' node.

#include "tests/security/purse.h"
#include "troupe/actor.h"

int main(int argc, char** argv) {
  return troupe::host_main(argc, argv, troupe::actors<troupe::tests::Purse>).value_or(2);
}
