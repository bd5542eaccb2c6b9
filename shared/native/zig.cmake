# The package ziglang as compiler, archiver and linker. Code is for any processor of the architecture: by itself zig
# compiles for the one that it runs on.
find_program(ZIG python-zig REQUIRED)
set(CMAKE_CXX_COMPILER "${ZIG};c++")
set(CMAKE_CXX_FLAGS_INIT "-mcpu=baseline")
set(CMAKE_AR "${ZIG}")
set(CMAKE_CXX_ARCHIVE_CREATE "<CMAKE_AR> ar qc <TARGET> <OBJECTS>")
set(CMAKE_CXX_ARCHIVE_FINISH "")
