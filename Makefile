# gcomp: `make help` lists the targets. CC, CXX and CFLAGS are respected.

CC ?= gcc
CXX ?= g++
CFLAGS ?= -O2
STRICT = -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wundef
CSTRICT = $(STRICT) -Wstrict-prototypes
INCLUDE = -I. -Iexamples/adapters -Itests/tools
ADAPTERS = $(wildcard examples/adapters/gcomp_*.h)
TRAIN_LIBS = -lopenblas -lz -lm -pthread
TRAIN = $(wildcard examples/train/*.[ch]) examples/args.h $(ADAPTERS) tests/tools/codecs.h gcomp.h

# Debian's packages: those of the demo and of "make examples", those of "make test", and all.
DEMO_PACKAGES = gcc g++ libc6-dev libstb-dev libopenblas-dev zlib1g-dev gnuplot-nox dataset-fashion-mnist fortunes
TEST_PACKAGES = gcc g++ libc6-dev libstb-dev python3 python3-numpy
PACKAGES = $(sort $(DEMO_PACKAGES) $(TEST_PACKAGES)) clang libclang-rt-14-dev clang-19 gcc-aarch64-linux-gnu libc6-dev-arm64-cross \
    gcc-arm-linux-gnueabihf libc6-dev-armhf-cross gcc-s390x-linux-gnu libc6-dev-s390x-cross gcc-riscv64-linux-gnu \
    libc6-dev-riscv64-cross gcc-i686-linux-gnu libc6-dev-i386-cross musl-tools \
    lld wasi-libc libclang-rt-14-dev-wasm32 nodejs qemu-user g++-mingw-w64-x86-64-posix wine wine64 \
    libopenmpi-dev openmpi-bin libmpich-dev mpich python3-torch \
    cmake pkg-config python3-pip python3-setuptools python3-wheel python3-venv rustc
ifeq ($(sort $(MAKECMDGOALS)),demo deps)
PACKAGES = $(DEMO_PACKAGES)
endif
ifeq ($(sort $(MAKECMDGOALS)),deps test)
PACKAGES = $(TEST_PACKAGES)
endif

# "make install" copies the stb_ds.h that the compiler finds beside gcomp.h. STB_DS_H names another one; STB_DS_H=none copies none.
PREFIX ?= /usr/local
DESTDIR ?=
INSTALL ?= install
RUSTC ?= rustc
STB_DS_H = $(shell printf '\043if __has_include("stb_ds.h")\n\043include "stb_ds.h"\n\043else\n\043include <stb/stb_ds.h>\n\043endif\n' | \
    $(CC) $(INCLUDE) -M -x c - 2>/dev/null | tr ' ' '\n' | grep 'stb_ds\.h$$')
VERSION_OF_HEADER = $(shell awk '/^.define GCOMP_VERSION / { printf "%d.%d.%d", $$3 / 10000, $$3 / 100 % 100, $$3 % 100 }' gcomp.h)
HEADERS = gcomp.h $(ADAPTERS)
INTO = $(DESTDIR)$(PREFIX)

all: build/train build/bench ## build the demo and the bench

help: ## print this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 14

deps: ## install Debian's packages, as root or with sudo: "make deps demo" those of demo and examples, "make deps test" those of test, "make deps" all
	@sudo=; [ "$$(id -u)" = 0 ] || sudo=sudo; $$sudo env DEBIAN_FRONTEND=noninteractive \
	    apt-get install -y --no-install-recommends $(PACKAGES)

build:
	mkdir -p build

build/gcomp.o: gcomp.h | build
	echo '#define GCOMP_IMPLEMENTATION' > build/gcomp.c; echo '#include "gcomp.h"' >> build/gcomp.c
	$(CC) $(CFLAGS) $(CSTRICT) $(INCLUDE) -c build/gcomp.c -o $@

build/libgcomp.so: gcomp.h $(ADAPTERS) | build ## the shared object that examples/python/gcomp.py loads
	echo '#define GCOMP_IMPLEMENTATION' > build/shared.c; echo '#include "examples/adapters/gcomp_advise.h"' >> build/shared.c
	echo '#include "examples/adapters/gcomp_sockets.h"' >> build/shared.c; echo '#include "examples/adapters/gcomp_layouts.h"' >> build/shared.c
	$(CC) $(CFLAGS) -shared -fPIC -DGCOMP_EXPORT -DGCOMP_LAYOUTS_SHARED -DGCOMP_ADVISE_SHARED -DGCOMP_SOCKETS_SHARED $(INCLUDE) build/shared.c -o $@ -pthread

need-demo:
	@for f in cblas.h zlib.h; do echo "#include <$$f>" | $(CC) -E -x c - >/dev/null 2>&1 || \
	    { echo "missing $$f: apt-get install libopenblas-dev zlib1g-dev or: make deps demo"; exit 1; }; done

need-mpi:
	@command -v mpicc >/dev/null || { echo "missing mpicc: apt-get install libopenmpi-dev openmpi-bin"; exit 1; }

need-gemm:
	@for f in openblas blis; do echo 'int main(void) { return 0; }' | $(CC) -x c - -o /dev/null -l$$f 2>/dev/null || \
	    { echo "missing lib$$f: apt-get install libopenblas-dev libblis-dev"; exit 1; }; done

build/train: $(TRAIN) build/gcomp.o | need-demo
	$(CC) $(CFLAGS) $(INCLUDE) examples/train/train.c build/gcomp.o -o $@ $(TRAIN_LIBS)

build/train_mpi: $(TRAIN) build/gcomp.o | need-mpi need-demo
	mpicc -DUSE_MPI $(CFLAGS) $(INCLUDE) examples/train/train.c build/gcomp.o -o $@ $(TRAIN_LIBS)

TRANSFORMER = $(wildcard examples/transformer/*.[ch]) $(TRAIN)
build/transformer: $(TRANSFORMER) build/gcomp.o | need-demo
	$(CC) $(CFLAGS) $(INCLUDE) examples/transformer/transformer.c build/gcomp.o -o $@ $(TRAIN_LIBS)

build/transformer_mpi: $(TRANSFORMER) build/gcomp.o | need-mpi need-demo
	mpicc -DUSE_MPI $(CFLAGS) $(INCLUDE) examples/transformer/transformer.c build/gcomp.o -o $@ $(TRAIN_LIBS)

PATTERNS = build/outer build/delayed build/gossip build/leader
$(PATTERNS): build/%: examples/patterns/%.c examples/patterns/train_pattern.h $(TRAIN) build/gcomp.o | need-demo
	$(CC) $(CFLAGS) $(INCLUDE) $< build/gcomp.o -o $@ $(TRAIN_LIBS)

build/overlap: examples/overlap.c $(TRAIN) build/gcomp.o | need-demo
	$(CC) $(CFLAGS) $(INCLUDE) examples/overlap.c build/gcomp.o -o $@ $(TRAIN_LIBS)

build/overlap_mpi: examples/overlap.c $(TRAIN) build/gcomp.o | need-mpi need-demo
	mpicc -DUSE_MPI $(CFLAGS) $(INCLUDE) examples/overlap.c build/gcomp.o -o $@ $(TRAIN_LIBS)

build/bench: $(wildcard bench/bench*.[ch]) bench/measure.h examples/args.h $(ADAPTERS) tests/tools/codecs.h gcomp.h | build
	$(CC) $(CFLAGS) $(INCLUDE) bench/bench.c -o $@ -lm -pthread

build/advise: examples/advise.c examples/args.h $(ADAPTERS) build/gcomp.o | build
	$(CC) $(CFLAGS) $(INCLUDE) examples/advise.c build/gcomp.o -o $@ -lm -pthread

build/gemm: bench/gemm.c bench/measure.h examples/args.h gcomp.h | build need-gemm
	$(CC) $(CFLAGS) $(INCLUDE) bench/gemm.c -o $@ -lm -ldl

build/scale: bench/scale.c bench/measure.h examples/args.h build/gcomp.o | build
	$(CC) $(CFLAGS) $(INCLUDE) bench/scale.c build/gcomp.o -o $@ -lm

build/resnet: bench/resnet.c examples/args.h $(ADAPTERS) build/gcomp.o | build
	$(CC) $(CFLAGS) $(INCLUDE) bench/resnet.c build/gcomp.o -o $@ -lm -pthread

build/first: examples/first.c gcomp.h examples/args.h $(ADAPTERS) | build
	$(CC) $(CFLAGS) $(INCLUDE) $< -o $@ -lm -pthread

build/engine: examples/engine.cpp examples/args.h build/gcomp.o
	$(CXX) -std=c++11 $(CFLAGS) $(INCLUDE) examples/engine.cpp build/gcomp.o -o $@ -pthread

build/own_loop build/server: build/%: examples/%.c examples/args.h build/gcomp.o
	$(CC) $(CFLAGS) $(INCLUDE) $< build/gcomp.o -o $@

build/lgc: examples/lgc/lgc.c examples/lgc/lgc_net.h examples/args.h $(ADAPTERS) build/gcomp.o
	$(CC) $(CFLAGS) $(INCLUDE) examples/lgc/lgc.c build/gcomp.o -o $@ -lm -pthread

build/elastic: examples/elastic.c examples/args.h $(ADAPTERS) build/gcomp.o
	$(CC) $(CFLAGS) $(INCLUDE) examples/elastic.c build/gcomp.o -o $@ -lm -pthread

build/sharded: examples/sharded.c examples/args.h $(ADAPTERS) build/gcomp.o
	$(CC) $(CFLAGS) $(INCLUDE) examples/sharded.c build/gcomp.o -o $@ -lm -pthread

build/embedded_gcomp.o: examples/embedded_gcomp.c gcomp.h | build
	$(CC) -Os $(INCLUDE) -c $< -o $@

build/embedded: examples/embedded.c examples/args.h build/embedded_gcomp.o
	$(CC) -Os $(INCLUDE) $< build/embedded_gcomp.o -o $@

build/layouts: examples/layouts.c gcomp.h $(ADAPTERS) | build
	$(CC) $(CFLAGS) $(INCLUDE) $< -o $@

build/layouts.o: gcomp.h $(ADAPTERS) | build
	echo '#define GCOMP_IMPLEMENTATION' > build/layouts.c; echo '#include "examples/adapters/gcomp_layouts.h"' >> build/layouts.c
	$(CC) $(CFLAGS) -DGCOMP_LAYOUTS_SHARED $(INCLUDE) -c build/layouts.c -o $@

build/client: examples/rust/client.rs build/layouts.o
	$(RUSTC) -O -C link-arg=build/layouts.o $< -o $@

demo: build/train ## train with and without compression; makes a table, build/demo.svg and build/methods.svg
	OPENBLAS_NUM_THREADS=1 ./build/train

readme: build/train build/transformer ## measure the table of the README's first page, and put it there; needs PyTorch; takes some 10 minutes
	bench/readme.sh

picture: demo ## run the demo, and copy its picture to examples/demo.svg, which the README shows
	cp build/demo.svg examples/demo.svg

methods: build/train ## measure bits and error of every codec on a real gradient, find the frontier; makes a table and build/methods.svg
	OPENBLAS_NUM_THREADS=1 ./build/train --errors

demo-mpi: build/train_mpi ## run the demo under mpirun, one worker a rank
	OPENBLAS_NUM_THREADS=1 mpirun --allow-run-as-root --oversubscribe -n 4 ./build/train_mpi

accuracy: build/train ## compare the loss of methods with that of uncompressed training, over three seeds; takes minutes
	OPENBLAS_NUM_THREADS=1 ./build/train --accuracy

accordion: build/train ## compare the schedule accordion (PowerSGD of ranks 4 and 1) with rank 4 alone, over three seeds; takes minutes
	OPENBLAS_NUM_THREADS=1 ./build/train --accordion

residuals: build/train ## compare residuals of bf16 and int8 with those of fp32, over three seeds; takes minutes
	OPENBLAS_NUM_THREADS=1 ./build/train --residuals

dgc: build/train ## train 20 epochs with 0.1 % of the gradient by Deep Gradient Compression and plain top-k, three seeds; takes half an hour
	OPENBLAS_NUM_THREADS=1 ./build/train --dgc

adam: build/transformer ## train a small GPT-2 with AdamW behind codecs, and with 1-bit Adam, Signum and DeMo: two rates, three seeds; makes a table and build/adam.svg; takes minutes
	bench/adam.sh

patterns: $(PATTERNS) ## train locally, late, with peers and with a leader, over three seeds; makes a table and build/patterns.svg; takes minutes
	@missed=0; for p in $(PATTERNS); do OPENBLAS_NUM_THREADS=1 ./$$p --seeds 3 || missed=1; done; \
	    gnuplot examples/patterns/patterns.gnuplot && echo "build/patterns.svg: loss against rounds and against bytes"; exit $$missed

bench: build/bench ## measure speeds beside the bandwidth of memory; takes some 4 minutes; shows a screen, and makes build/bench.csv
	./build/bench --csv build/bench.csv

advise: build/advise ## find out over which links compressing a ResNet-18 pays on this machine; asks for the optimizer; prints expected and measured times
	./build/advise

scale: build/scale ## measure what a step costs one of 4 to 1,024 workers, all in this process; makes tables, build/scale.csv and build/scale.svg; takes a minute
	./build/scale && gnuplot bench/scale.gnuplot

bench-gemm: build/gemm ## measure powersgd's matrix products beside sgemm of OpenBLAS and BLIS
	./build/gemm

bench-torch: build/resnet build/bench ## measure encoding beside PyTorch's operations, and a step of PowerSGD beside PyTorch's hook over Gloo; takes minutes
	@for python in python3 /usr/bin/python3; do $$python -c 'import torch' 2>/dev/null || continue; \
	    $$python bench/torch_codecs.py && exec $$python bench/torch_hook.py; exit 1; done; \
	    echo "missing PyTorch: apt-get install python3-torch"; exit 1

bench-python: build/libgcomp.so ## measure what calls from Python cost over calls from C
	@PATH="/usr/bin:$$PATH" python3 bench/python.py

net: build/train build/train_mpi ## train over four hosts with slow links, made on this machine; as root; makes build/net.svg
	bench/net.sh

examples: build/first build/advise build/elastic build/engine build/embedded build/lgc build/own_loop build/overlap build/server build/sharded build/train build/transformer $(PATTERNS) ## build all examples

ifdef ONE
test: build/gcomp.o $(if $(filter test_torch,$(ONE)),build/libgcomp.so)
	@sh tests/run.sh one $(ONE)
else
test: ## test every property, in about 4 minutes on two cores; "make test ONE=test_topk" tests one file of tests/ on every instruction set
	@sh tests/run.sh
endif

test-all: ## test the rest: all compilers, levels and standards, emulated sets, a long fuzz, MPI, examples; takes some 25 minutes
	@sh tests/run.sh all

layouts: build/layouts ## print sizes and offsets of all public structs, and values of constants, as JSON: for other languages
	@build/layouts

install: ## copy the header, its adapters, stb_ds.h, gcomp.pc and a package of CMake below PREFIX (/usr/local); DESTDIR is respected
	@stb='$(STB_DS_H)'; [ "$$stb" = none ] || [ -f "$$stb" ] || { \
	    echo "gcomp.h needs stb_ds.h, which is not there: install libstb-dev, or name the file by make install STB_DS_H=FILE"; exit 1; }; \
	set -e; \
	$(INSTALL) -d '$(INTO)/include/gcomp' '$(INTO)/share/pkgconfig' '$(INTO)/share/cmake/gcomp'; \
	$(INSTALL) -m 644 $(HEADERS) '$(INTO)/include/gcomp'; \
	[ "$$stb" = none ] || $(INSTALL) -m 644 "$$stb" '$(INTO)/include/gcomp/stb_ds.h'; \
	sed 's|@PREFIX@|$(PREFIX)|; s|@VERSION@|$(VERSION_OF_HEADER)|' examples/packages/gcomp.pc.in > '$(INTO)/share/pkgconfig/gcomp.pc'; \
	chmod 644 '$(INTO)/share/pkgconfig/gcomp.pc'; \
	$(INSTALL) -m 644 examples/packages/gcomp-config.cmake examples/packages/gcomp-config-version.cmake '$(INTO)/share/cmake/gcomp'; \
	echo "gcomp $(VERSION_OF_HEADER) is in $(INTO)/include/gcomp"

uninstall: ## remove what make install with the same PREFIX and DESTDIR has copied
	rm -f $(patsubst %,'$(INTO)/include/gcomp/%',$(notdir $(HEADERS)) stb_ds.h) '$(INTO)/share/pkgconfig/gcomp.pc' \
	    '$(INTO)/share/cmake/gcomp/gcomp-config.cmake' '$(INTO)/share/cmake/gcomp/gcomp-config-version.cmake'
	@for d in '$(INTO)/include/gcomp' '$(INTO)/share/cmake/gcomp'; do [ ! -d "$$d" ] || rmdir "$$d"; done

clean: ## remove build/
	rm -rf build

.PHONY: all help deps demo readme picture methods demo-mpi accuracy accordion residuals dgc adam patterns bench scale bench-gemm bench-torch bench-python advise examples layouts install uninstall test test-all clean need-demo need-gemm need-mpi net
