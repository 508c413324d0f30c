// The program that the tests' precompiled header is made for (tests/CMakeLists.txt).
int main() {}
