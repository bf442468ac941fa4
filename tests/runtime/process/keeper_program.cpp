// A program that is nothing but a keeper, for keeper_test.cpp.

#include "runtime/process/keeper.h"

int main(int argc, char** argv) { return troupe::process::keeper_main(argc, argv).value_or(2); }
