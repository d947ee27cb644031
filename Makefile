# Everything runs in .venv, made on first use. PYTHON: the interpreter that makes it.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# An mpirun of the machine is kept; where there is none, the mpich wheel brings one.
MPICH  := $(shell command -v mpirun >/dev/null 2>&1 || echo ,mpich)
# Of the demo, which needs no MPI.
LAUNCH := $(shell command -v mpirun >/dev/null 2>&1 && echo mpirun || echo python -m pgas.run)
export PATH := $(CURDIR)/$(BIN):$(PATH)
# Tests start Python thousands of times, in the guest emulated: bytecode is kept, whatever the caller's environment says.
unexport PYTHONDONTWRITEBYTECODE
# A crash while Python ends, when pytest no longer reports crashes, shows where it was.
export PYTHONFAULTHANDLER := 1
# Open MPI refuses root, counts cores and binds PEs to them, as perftests/harness/jobs.py says; it need not for tests. OMPI_ is its version 4, PRTE_ 5.
export OMPI_ALLOW_RUN_AS_ROOT := 1
export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM := 1
export OMPI_MCA_rmaps_base_oversubscribe := 1
export OMPI_MCA_hwloc_base_binding_policy := none
export PRTE_MCA_rmaps_default_mapping_policy := :oversubscribe
export PRTE_MCA_hwloc_default_binding_policy := none

COMMA := ,
# Transports that kernels drive a NIC with.
NIC_TRANSPORTS := ibgda ibrc
# Of jobs with two paths.
PAIRS := p2p,ibgda p2p,ibrc
PYTEST := python -m pytest -q
# The conformance suite adds what a run shows to this file.
REPORT := build/conformance.json
PYTEST_SUITE := $(PYTEST) --conformance-report $(REPORT)
SUITE := $(PYTEST_SUITE) tests/conformance
# Conformance chapters for three PEs over a NIC (the left and right neighbors differ), for four PEs over p2p, and under weak memory.
chapters = $(patsubst %,tests/conformance/test_%.py,$(1))
OF_TEAMS := $(call chapters,teams collectives wrong_collectives)
OF_3 := $(call chapters,senders signals atomics locks atomic_programs litmus order wait) $(OF_TEAMS)
OF_4 := $(call chapters,atomic_programs litmus order) $(OF_TEAMS)
WEAK := $(call chapters,senders signals atomic_programs litmus order)
# Tests of collectives in which some members run ahead of others. They run on three PEs too: then a member waits for several others, and
# the order of additions matters.
AHEAD := "floods or channels or overlap or meetings or place or split or every_op or same_bits"
# The slowest of them. Over p2p they run on three PEs only.
LONG := $(addprefix --deselect $(call chapters,collectives)::test_,floods blocks_on_channels meetings_between_moves)
# Small and large ones of every form, for weak memory.
WEAK_COLLECTIVES := $(addprefix $(call chapters,collectives)::test_,floods floods_of_parts blocks_on_channels meetings_between_moves every_root reductions)
OF_NIC := $(addprefix tests/mpi/test_,nic.py nic_order.py register.py reset.py nvshmem.py)
# What ibgda and ibrc share: make check runs it over ibgda.
OF_BOTH := $(addprefix tests/mpi/test_,streams.py heap_growth.py)
# What the proxy thread does differently from ibgda. make conformance runs all chapters over ibrc.
OF_PROXY := $(call chapters,rma strided atomics atomic_programs signals senders order litmus locks wait)
# In jobs with two paths: machines as PGAS_PES_PER_NODE counts them, and PEs. Teams of the second one are not regular.
MACHINES := 2:4 2,1:3 1:3
OF_TWO_PATHS := $(OF_TEAMS) $(addprefix tests/mpi/test_,collective_limits.py two_paths.py)
# Chapters that start jobs of their own, and find the same over every transport.
ALONE := $(addprefix --ignore ,$(call chapters,init operands))

# A guest with Soft-RoCE devices, and what is run in it: requests of every kind over rxe0, faults.
RXE := PYTHONPATH=tests:tests/support$(addprefix :,$(PYTHONPATH)) python -m rxe
RXE_JOB := PGAS_TRANSPORT=ibrc PGAS_HCA=rxe0 PGAS_SYMMETRIC_SIZE=64M PGAS_QP_DEPTH=128 PGAS_IBRC_RING_SIZE=64 \
  PGAS_TIMEOUT=120 TEST_TIMEOUT=300
RXE_TESTS := tests/mpi/test_requests.py
RXE_NPES := 2 3
RXE_TRAFFIC = for npes in $(RXE_NPES); do $(RXE_JOB) mpirun -n $$npes python -m pytest $(RXE_TESTS) -q; done
RXE_FAULTS := TEST_TIMEOUT=200 python -m pytest tests/rxe/test_faults.py -q
RXE_WIRE := TEST_TIMEOUT=600 python -m pytest tests/rxe/test_foreign.py -q
RXE_MACHINES := python -m pytest tests/rxe/test_two_machines.py -q
RXE_NETEM := python -m rxe.speed; python -m pytest tests/rxe/test_netem.py -q

.PHONY: demo check check-all check-rxe check-gpu compare conformance docs site picture figures install lint types static loops unit compiled wheel \
  mpi mpi-all two-paths sass packages programs programs-all rxe slow check-order check-rxe-faults check-rxe-machines check-rxe-suite \
  check-rxe-netem check-rxe-wire clean

$(VENV)/demo: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[cu13]'
	touch $@

$(VENV)/dev: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev$(MPICH)]'
	touch $@ $(VENV)/demo

## demo: install, then two PEs move data from inside kernels (GPUs if there are some, else the simulator)
demo: $(VENV)/demo
	$(LAUNCH) -n 2 python -m pgas.perftests.demo
	for test in shmem_put_bw shmem_p_bw; do $(LAUNCH) -n 2 $$test || exit; done
	@echo "# The same over a NIC, a software ConnectX here; kernels run in the simulator"
	for transport in $(NIC_TRANSPORTS); do for test in shmem_put_bw shmem_p_bw; do \
	  NUMBA_ENABLE_CUDASIM=1 $(LAUNCH) -n 2 $$test --transport $$transport -e 16K || exit; done; done

# Stages, and how long each took.
run_stages = @times=; for stage in $(1); do start=$$(date +%s); $(MAKE) --no-print-directory $$stage || exit; \
  times="$$times $$(($$(date +%s) - start)) $$stage"; done; printf '%6d s  %s\n' $$times

## check: what tells most, without a GPU; at most 10 minutes on 2 cores
check:
	$(call run_stages,install packages static unit compiled mpi programs)

## check-all: everything that needs no GPU: the site, slow tests, tools, other numbers of PEs, 10,000 programs, Soft-RoCE; an hour and more
check-all: check
	$(call run_stages,site slow conformance check-order mpi-all two-paths programs-all rxe)

install: $(VENV)/dev

# What tests of verbs use of Debian's packages; where they cannot be had, a line says so and those tests are skipped.
packages: $(VENV)/dev
	@$(RXE) packages || test $$? = 77

# check-rxe and check-rxe-faults in one guest. Status 77: no guest can run on this machine, and a line said why.
rxe: $(VENV)/dev
	@$(RXE) run --forks --also pgas.transports.softhca.wire.loop --timeout 3600 \
	  sh -ec '$(RXE_TRAFFIC); $(RXE_WIRE); $(RXE_MACHINES) -m "not slow"; $(RXE_FAULTS)' || { \
	  status=$$?; test $$status = 77 && echo "rxe skipped: the line above says why" || exit $$status; }

static: $(VENV)/dev
	@$(MAKE) --no-print-directory -j 2 --output-sync lint types loops

# Compile the CPU loops (forwarder, proxy thread, software card, tests of its wire) once; tests that start in parallel would each compile them.
LOOPS := from pgas.transports.ibgda import forwarding; from pgas.transports.ibrc import loop, work_requests, wqes; \
  from pgas.transports.softhca.engine import loop as engine; from pgas.transports.softhca.wire import loop as wire; \
  import wire_link; forwarding._loop(); loop.compiled(wqes); loop.compiled(work_requests)

loops: $(VENV)/dev
	@NUMBA_ENABLE_CUDASIM=1 PYTHONPATH=tests/support$(addprefix :,$(PYTHONPATH)) python -c "$(LOOPS)"

lint: $(VENV)/dev
	ruff check .
	ruff format --check .

types: $(VENV)/dev
	mypy pgas tests/support/typed_calls.py

# Four at once on two cores: tests of deaths and timeouts wait more than they compute.
UNIT := tests --ignore tests/conformance --ignore tests/mpi --ignore tests/rxe --ignore tests/uverbs -n 4 --dist worksteal

# Those that compile for a GPU: other modules want the simulator.
SASS := $(shell grep -rl mark.sass tests --include="test_*.py")

unit: $(VENV)/dev
	$(PYTEST) $(UNIT) -m "not sass and not slow and not wheel"

sass: $(VENV)/dev
	NUMBA_ENABLE_CUDASIM=0 $(PYTEST) $(SASS) -n 2 --dist loadfile -m "sass and not slow"

# What compiles for a GPU, with the packages of CUDA 13 and of CUDA 12.
compiled: $(VENV)/dev
	@$(MAKE) --no-print-directory -j 2 --output-sync sass wheel

# A wheel of this tree, installed with the packages of CUDA 12 into an environment of its own.
wheel: $(VENV)/dev
	$(PYTEST) tests/test_wheel.py -m "not slow"

slow: $(VENV)/dev
	$(PYTEST) $(UNIT) -m "slow and not sass"
	NUMBA_ENABLE_CUDASIM=0 $(PYTEST) $(SASS) -n 2 --dist loadfile -m "slow and sass"
	TEST_LAUNCHER=run $(PYTEST) -n 4 $(addprefix tests/job/test_,faults.py faults_nic.py broken_job.py hang_report.py)
	PGAS_ENGINE=cuda $(PYTEST) $(addprefix tests/softhca/test_softhca_,wqes.py errors.py atomics.py states.py rig.py) -n 2 -m "not sass"
	PGAS_ENGINE=dma $(PYTEST) $(addprefix tests/softhca/test_softhca_,wqes.py errors.py atomics.py) -n 2 -m "not sass"

## conformance: the suite over every transport in the simulator, and what it has shown; CONFORMANCE_LIBRARY names another library than pgas
conformance: $(VENV)/dev
	rm -f $(REPORT)
	for npes in 1 2 3; do PGAS_TRANSPORT=p2p mpirun -n $$npes $(SUITE) || exit; done
	PGAS_TRANSPORT=p2p mpirun -n 4 $(PYTEST_SUITE) $(OF_4)
	for transport in $(NIC_TRANSPORTS); do export PGAS_TRANSPORT=$$transport; \
	  mpirun -n 2 $(SUITE) && mpirun -n 3 $(PYTEST_SUITE) $(OF_3) || exit; done
	for transport in p2p $(NIC_TRANSPORTS); do PGAS_SIM_WEAK=1 PGAS_TRANSPORT=$$transport mpirun -n 2 $(PYTEST_SUITE) $(WEAK) $(call chapters,collectives) || exit; done
	for transport in $(addprefix p2p$(COMMA),$(NIC_TRANSPORTS)); do for machines in $(MACHINES); do \
	  export PGAS_TRANSPORT=$$transport PGAS_PES_PER_NODE=$${machines%:*}; \
	  mpirun -n $${machines#*:} $(PYTEST_SUITE) -m "not slow" $(OF_TWO_PATHS) && \
	  PGAS_SIM_WEAK=1 mpirun -n $${machines#*:} $(PYTEST_SUITE) -m "not slow" $(call chapters,collectives) || exit; done; done
	PYTHONPATH=tests$(addprefix :,$(PYTHONPATH)) python -m conformance.report $(REPORT)

# Two PEs: the suite and what looks into pgas, over every transport and under weak memory. One after another: each keeps two cores busy.
mpi: $(VENV)/dev
	@$(MAKE) --no-print-directory -j 1 mpi-ibgda mpi-ibrc mpi-p2p mpi-weak mpi-pairs

mpi-p2p: $(VENV)/dev
	PGAS_TRANSPORT=p2p mpirun -n 2 $(PYTEST) -m "not slow" tests/conformance tests/mpi $(LONG)
	PGAS_TRANSPORT=p2p mpirun -n 3 $(PYTEST) -m "not slow" $(call chapters,teams collectives) -k $(AHEAD)

mpi-ibgda mpi-ibrc: mpi-%: $(VENV)/dev
	PGAS_TRANSPORT=$* mpirun -n 2 $(PYTEST) -m "not slow" $(if $(filter ibrc,$*),$(OF_PROXY),tests/conformance $(ALONE))
	PGAS_TRANSPORT=$* mpirun -n 2 $(PYTEST) $(OF_NIC) $(if $(filter ibgda,$*),$(OF_BOTH))
	PGAS_NIC_ORDERING=none PGAS_TRANSPORT=$* mpirun -n 2 $(PYTEST) tests/mpi/test_nic_order.py

mpi-weak: $(VENV)/dev
	PGAS_SIM_WEAK=1 PGAS_TRANSPORT=p2p mpirun -n 2 $(PYTEST) -m "not slow" $(WEAK) $(WEAK_COLLECTIVES) tests/mpi/test_weak.py
	PGAS_SIM_WEAK=1 PGAS_TRANSPORT=p2p mpirun -n 3 $(PYTEST) tests/mpi/test_weak.py -k slices
	PGAS_SIM_WEAK=1 PGAS_TRANSPORT=ibgda mpirun -n 2 $(PYTEST) $(WEAK) tests/mpi/test_nic.py

# Two paths in a job, of 2+1 PEs: which path an operation takes, and order over both.
mpi-pairs: export PGAS_PES_PER_NODE := 2,1
mpi-pairs: $(VENV)/dev
	PGAS_TRANSPORT=p2p,ibgda mpirun -n 3 $(PYTEST) tests/mpi/test_two_paths.py tests/mpi/test_copy_engine.py $(call chapters,order)
	PGAS_PES_PER_NODE=1 PGAS_TRANSPORT=p2p,ibgda mpirun -n 2 $(PYTEST) tests/mpi/test_nvshmem.py
	PGAS_TRANSPORT=p2p,ibrc mpirun -n 3 $(PYTEST) tests/mpi/test_two_paths.py -k "near or ptr or both or meet"

## two-paths: the suite, weak memory too, with two paths in the job: 2+2, 2+1 and 1+1+1 PEs
two-paths: $(VENV)/dev
	for transport in $(PAIRS); do for machines in 4:2 3:2,1 3:1; do \
	  export PGAS_TRANSPORT=$$transport PGAS_PES_PER_NODE=$${machines#*:}; npes=$${machines%:*}; \
	  mpirun -n $$npes $(PYTEST) tests/conformance $(ALONE) tests/mpi/test_two_paths.py && \
	  PGAS_AMO=peer mpirun -n $$npes $(PYTEST) tests/mpi/test_two_paths.py && \
	  PGAS_NIC_ORDERING=none mpirun -n $$npes $(PYTEST) tests/mpi/test_nic_order.py && \
	  PGAS_SIM_WEAK=1 mpirun -n $$npes $(PYTEST) $(WEAK) $(WEAK_COLLECTIVES) || exit; done; done
	for transport in $(PAIRS); do PGAS_TRANSPORT=$$transport PGAS_PES_PER_NODE=2,1 \
	  mpirun -n 3 $(PYTEST) $(addprefix tests/mpi/test_,register.py reset.py streams.py heap_growth.py) || exit; done

# The conformance suite under the order checker: transport, PEs, PGAS_PES_PER_NODE.
UNDER_ORDER := p2p:2 p2p:3 $(foreach nic,$(NIC_TRANSPORTS),$(nic):2 $(nic):3) $(foreach pair,$(PAIRS),$(pair):2:1 $(pair):3:2,1)

## check-order: the conformance suite under the order checker, over every transport
check-order: $(VENV)/dev
	for job in $(UNDER_ORDER); do set -- $$(echo $$job | tr : ' '); PGAS_CHECK=order PGAS_TRANSPORT=$$1 PGAS_PES_PER_NODE=$$3 \
	  mpirun -n $$2 $(PYTEST) -p pgas.check.pytest_plugin -m "not slow" tests/conformance $(ALONE) || exit; done

COVERED := coverage run -p -m pytest -q

# The rest: other numbers of PEs, and line coverage of ibgda's device code.
mpi-all: $(VENV)/dev
	for npes in 1 3; do mpirun -n $$npes $(PYTEST) tests/mpi || exit; done
	PGAS_TRANSPORT=ibgda mpirun -n 2 $(COVERED) $(filter-out %collectives.py,$(OF_3)) $(call chapters,strided) $(addprefix tests/mpi/test_,nic.py register.py) \
	  -m "not slow" -k "not hold and not contention and not permutation"
	PGAS_NIC_ORDERING=none PGAS_TRANSPORT=ibgda mpirun -n 2 $(COVERED) tests/mpi/test_nic_order.py
	coverage combine -q
	coverage report --include 'kernels/paths/ibgda.py,kernels/paths/nic/*' --omit 'kernels/paths/nic/ring.py' --fail-under 95
	PGAS_SIM_WEAK=1 PGAS_TRANSPORT=ibgda mpirun -n 2 $(PYTEST) tests/mpi/test_weak.py
	PGAS_TRANSPORT=ibrc $(PYTEST) $(call chapters,rma) tests/mpi/test_nic.py
	for transport in $(NIC_TRANSPORTS); do PGAS_ENGINE=cuda PGAS_TRANSPORT=$$transport mpirun -n 2 $(PYTEST) tests/mpi/test_nic.py || exit; done
	PGAS_TRANSPORT=ibrc mpirun -n 2 $(PYTEST) $(OF_BOTH)
	for transport in $(NIC_TRANSPORTS); do export PGAS_TRANSPORT=$$transport; \
	  for npes in 2 3; do mpirun -n $$npes $(PYTEST) tests/mpi/test_collective_limits.py -m "not slow" || exit; done; \
	  mpirun -n 3 $(PYTEST) tests/mpi/test_nic.py && \
	  PGAS_QP_DEPTH=128 PGAS_IBGDA_RC_MAP_BY=warp mpirun -n 2 $(PYTEST) tests/mpi/test_nic.py -k hold && \
	  PGAS_SIM_WEAK=1 mpirun -n 2 $(PYTEST) tests/mpi/test_nic.py || exit; done

# Random programs against an oracle: PEs, transport, seed of the weak memory (0: none), programs, PGAS_PES_PER_NODE. With seed 8 the second
# group has collectives, and so have the fourth and the fifth: also the shortest runs have some.
PROGRAMS := 2:p2p:0:200 3:p2p:1:150 2:ibgda:0:200 2:ibgda:2:100 3:ibrc:0:100 2:ibrc:2:150 3:p2p,ibgda:1:50:2,1 3:p2p,ibrc:0:50:2,1
PROGRAMS_ALL := 2:p2p:0:1500 3:p2p:1:1000 4:p2p:2:500 2:ibgda:0:1000 3:ibgda:1:500 2:ibgda:2:750 2:ibrc:0:1000 3:ibrc:1:500 2:ibrc:2:750 \
  $(foreach pair,$(PAIRS),4:$(pair):0:500:2 3:$(pair):1:500:2,1 3:$(pair):2:250:1)
run_programs = @for job in $(1); do set -- $$(echo $$job | tr : ' '); weak=$${3\#0}; \
  PGAS_SIM_WEAK=$$weak PGAS_PES_PER_NODE=$$5 mpirun -n $$1 python -m pgas.perftests.programs --transport $$2 --seed 8 --count $$4 || exit; done

## programs: 1,000 random programs over every transport, compared with an oracle
programs: $(VENV)/dev
	$(call run_programs,$(PROGRAMS))

## programs-all: 10,000, and the soak test
programs-all: $(VENV)/dev
	$(call run_programs,$(PROGRAMS_ALL))
	for transport in p2p $(NIC_TRANSPORTS); do mpirun -n 4 python -m pgas.perftests.programs --transport $$transport --soak 30 || exit; done

## check-rxe: ibrc over Soft-RoCE and libibverbs, also between two machines, in a QEMU guest on this machine's root (Debian; uses apt-get)
check-rxe: $(VENV)/dev
	$(RXE) run --forks --timeout 1800 sh -ec '$(RXE_TRAFFIC); $(RXE_MACHINES) -m "not slow"'

## check-rxe-suite: the conformance suite over Soft-RoCE, too, half an hour
check-rxe-suite: RXE_TESTS += tests/conformance $(addprefix tests/mpi/test_,register.py reset.py streams.py heap_growth.py)
check-rxe-suite: $(VENV)/dev
	$(RXE) run --forks --timeout 3600 sh -ec '$(RXE_TRAFFIC)'

## check-rxe-faults: links that go down, peers that are killed, limits: each an error on every PE, in that guest
check-rxe-faults: $(VENV)/dev
	$(RXE) run --forks --timeout 1200 sh -ec '$(RXE_FAULTS)'

## check-rxe-wire: the wire of the software NIC against the kernel's Soft-RoCE, requests of every kind in both directions; 3 minutes
check-rxe-wire: $(VENV)/dev
	$(RXE) run --forks --also pgas.transports.softhca.wire.loop --timeout 1200 sh -ec '$(RXE_WIRE)'

## check-rxe-machines: jobs on two machines of two PEs, p2p,ibrc: programs, conformance tests, deaths and a link that goes down; 16 minutes
check-rxe-machines: $(VENV)/dev
	$(RXE) run --forks --timeout 5400 sh -ec '$(RXE_MACHINES)'

## check-rxe-netem: the software NIC on two machines: its speed next to Soft-RoCE, and jobs over a bad network (netem) or a dead link
check-rxe-netem: $(VENV)/dev
	$(RXE) run --forks --also pgas.transports.softhca.wire.loop --timeout 5400 sh -ec '$(RXE_NETEM)'

## check-gpu: what needs GPUs, with the Python that is active (one GPU: two PEs under MPS); writes perftests/baselines. FLAGS=--help
check-gpu:
	python3 tests/tools/check_gpu.py $(FLAGS)

## compare: latencies and collectives over p2p on the GPUs here, next to NVSHMEM and PyTorch; the Python that is active. FLAGS=--help
compare:
	python3 -m pgas.perftests.compare --run $(FLAGS)

## figures: put, p, Jacobi and all-to-all over ibrc and ibgda, measured and drawn into perftests/baselines, with the Python that is active
figures:
	python3 tests/tools/figures.py

## docs: write the generated pages of docs/ again, from docstrings and tables
docs: $(VENV)/dev
	NUMBA_ENABLE_CUDASIM=1 python tests/tools/reference.py

$(VENV)/site: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[docs]'
	touch $@

## site: the documentation as a static site in build/site, with search; it needs neither a server nor a network
site: $(VENV)/site
	NO_MKDOCS_2_WARNING=1 mkdocs build --strict
	@echo "open build/site/index.html"

## picture: draw the picture of README from its source again (Debian's graphviz)
picture: docs/pictures/transports.svg

docs/pictures/%.svg: docs/pictures/%.dot
	dot -Tsvg $< -o $@

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
