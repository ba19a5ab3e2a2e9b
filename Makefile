# One door: every task of the project is a target here. `make help` lists them.

SHELL := /bin/sh
.DEFAULT_GOAL := help

PYTHON ?= python3
UV_VERSION := 0.13.8
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=

.PHONY: help setup demo test test-unit check format bench bench-kafka bench-latency bench-peers bench-control-latency bench-loads bench-single-readings bench-models bench-model-swaps bench-expressions bench-query bench-power-loss bench-control bench-commands bench-state bench-autoscaling bench-dump bench-database-sink bench-table-source bench-table-lookup bench-lake-sink bench-lake-upserts bench-large-state bench-learned-state bench-windows bench-open-windows bench-tables bench-sql bench-joins join-cases table-cases soak chaos reliability rooms properties first-contact clean bench-store-sink bench-messages bench-amazon bench-avro bench-object-sink conformance bench-versioned-sinks bench-registry bench-lake-source bench-object-source bench-http-receiver

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-22s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(VENV)/.jars-stamp ## make .venv from the lock file, find a Java, fetch and prepare what jobs need once

$(BIN)/uv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "penstock needs Python 3.11 or later; $(PYTHON) is older. Set PYTHON=/path/to/python3.11." >&2; exit 1; }
	@echo "Making $(VENV) ..."
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)

# Bytecode is made here, since many an environment lets Python keep none (PYTHONDONTWRITEBYTECODE): a job is some ten
# processes, and each would compile what it imports.
$(VENV)/.packages-stamp: pyproject.toml uv.lock scripts/java_extra | $(BIN)/uv
	@echo "Installing the locked packages ..."
	@UV_PROJECT_ENVIRONMENT=$(VENV) $(BIN)/uv sync --frozen --inexact --quiet --compile-bytecode $$(scripts/java_extra)
	@touch $@

$(VENV)/.jars-stamp: $(VENV)/.packages-stamp src/penstock/machine/jars.py src/penstock/machine/class_archive.py
	@$(BIN)/python -m compileall -q -x template/ src
	@$(BIN)/python -m penstock.machine.setup
	@touch $@

demo: setup ## the temperature-control job with simulated rooms and a live view (ARGS="--kafka" or "--mqtt")
	@$(BIN)/penstock demo $(ARGS)

# Four on two cores: many tests wait, for a lease that ends or a process that starts.
test: setup ## all tests but the long ones
	@$(BIN)/python -m compileall -q -x template/ src tests/unit
	@$(BIN)/python -m pytest -n 4 --dist loadfile --no-loadscope-reorder $(ARGS)

test-unit: setup ## the tests of pure logic, without a JVM
	@$(BIN)/python -m compileall -q -x template/ src tests/unit
	@$(BIN)/python -m pytest tests/unit -n 4 --dist loadfile --no-loadscope-reorder $(ARGS)

check: setup ## lint, types, imports
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

format: setup ## format the code
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

bench: setup ## keyed state against PySpark's own, 16 M rows
	@$(BIN)/python -m benchmarks.keyed_state $(ARGS)

bench-kafka: setup ## Kafka to Kafka, 8 M readings
	@$(BIN)/python -m benchmarks.kafka $(ARGS)

bench-latency: setup ## Kafka to Kafka at 200 records a second
	@$(BIN)/python -m benchmarks.latency $(ARGS)

bench-peers: setup ## Kafka to Kafka beside Flink, in turns: throughput and latency (needs Maven; ARGS="--small")
	@$(BIN)/python -m benchmarks.peers $(ARGS)

bench-joins: setup ## interval and as-of joins of columns, in one process (ARGS="--small")
	@$(BIN)/python -m benchmarks.joins $(ARGS)

join-cases: setup ## what Flink emits for random joins, for the tests of joins (needs Maven)
	@$(BIN)/python -m benchmarks.peers.join_cases

bench-control-latency: setup ## how soon a setting is in force in real time
	@$(BIN)/python -m benchmarks.control_latency $(ARGS)

bench-loads: setup ## real time: idle, small, skewed, large and disturbed loads (ARGS="--small --loads idle start")
	@$(BIN)/python -m benchmarks.loads $(ARGS)

bench-single-readings: setup ## real time without Spark and a broker: processor time of readings that come one by one
	@$(BIN)/python -m benchmarks.single_readings $(ARGS)

bench-models: setup ## scores of a model in a step beside ONNX Runtime alone
	@$(BIN)/python -m benchmarks.model_scores

bench-model-swaps: setup ## new versions of a model under load: the longest micro-batch beside the median
	@$(BIN)/python -m benchmarks.model_swaps $(ARGS)

bench-expressions: setup ## where and select beside Python functions and Spark's own expressions
	@$(BIN)/python -m benchmarks.expressions $(ARGS)

bench-power-loss: setup ## what it costs that all a replay needs is on disk first
	@$(BIN)/python -m benchmarks.power_loss $(ARGS)

bench-control: setup ## a command to 100k keys, and 10,000 commands a second beside data
	@$(BIN)/python -m benchmarks.control $(ARGS)

bench-commands: setup ## a million commands one by one, without Spark
	@$(BIN)/python -m benchmarks.command_history $(ARGS)

bench-state: setup ## a micro-batch of equal size while 10k to 10M keys are held
	@$(BIN)/python -m benchmarks.state_growth $(ARGS)

bench-windows: setup ## tumbling windows of 100k keys, beside Spark's own
	@$(BIN)/python -m benchmarks.windows $(ARGS)

bench-open-windows: setup ## a micro-batch of equal size while 10k to 1M windows are open, and their end
	@$(BIN)/python -m benchmarks.open_windows $(ARGS)

bench-tables: setup ## totals, first rows, newest rows and moving sums of groups, beside Spark's own totals
	@$(BIN)/python -m benchmarks.tables $(ARGS)

bench-sql: setup ## a window, two joins and Top-N as SQL of penstock, Flink and Spark, in turns (needs Maven; ARGS="--rows 400000")
	@$(BIN)/python -m benchmarks.sql_speed $(ARGS)

table-cases: setup ## the cases of changing tables that tests compare with Flink, computed by it (needs Maven)
	@$(BIN)/python -m benchmarks.peers.table_cases

bench-autoscaling: setup ## a load that rises fourfold and falls again, under penstock serve
	@$(BIN)/python -m benchmarks.autoscaling $(ARGS)

bench-avro: setup ## Avro with a registry to columns, beside pyruhvro and fastavro (ARGS="--rows 20000")
	@$(BIN)/python -m benchmarks.avro $(ARGS)

bench-registry: setup ## JSON Schema and protobuf of a registry to columns, beside the fastest libraries (ARGS="--rows 20000")
	@$(BIN)/python -m benchmarks.registered_messages $(ARGS)

bench-lake-source: setup ## rows of Delta Lake and Iceberg to columns, beside delta-rs and pyiceberg
	@$(BIN)/python -m benchmarks.lake_source $(ARGS)

bench-object-source: setup ## objects of a store or HDFS to columns, beside obstore or hdfs-native, and pyarrow (ARGS="--uri s3://BUCKET/PREFIX")
	@$(BIN)/python -m benchmarks.object_source $(ARGS)

bench-http-receiver: setup ## requests to a job beside a plain server
	@$(BIN)/python -m benchmarks.http_receiver $(ARGS)

bench-dump: setup ## a dump of 1M keys beside a running job
	@$(BIN)/python -m benchmarks.state_dump $(ARGS)

bench-database-sink: setup ## rows of PostgreSQL beside psycopg alone (ARGS="--url postgresql://USER:PASS@HOST:PORT/DB")
	@$(BIN)/python -m benchmarks.database_sink $(ARGS)

bench-table-source: setup ## rows read from PostgreSQL beside psycopg alone (ARGS="--url postgresql://...")
	@$(BIN)/python -m benchmarks.table_source $(ARGS)
bench-table-lookup: setup ## lookups in a table of PostgreSQL beside psycopg alone (ARGS="--url postgresql://...")
	@$(BIN)/python -m benchmarks.table_lookup $(ARGS)

bench-object-sink: setup ## files of an object store or HDFS beside obstore or hdfs-native alone (ARGS="--uri s3://BUCKET/PREFIX")
	@$(BIN)/python -m benchmarks.object_sink $(ARGS)

bench-lake-sink: setup ## rows of Delta Lake and Iceberg beside delta-rs and pyiceberg alone
	@$(BIN)/python -m benchmarks.lake_sink $(ARGS)

bench-lake-upserts: setup ## upserts into Delta Lake and Iceberg beside delta-rs and pyiceberg (ARGS="--lakes delta")
	@$(BIN)/python -m benchmarks.lake_upserts $(ARGS)

bench-store-sink: setup ## values of Redis beside redis-py alone (ARGS="--url redis://HOST:PORT/DB", which is emptied)
	@$(BIN)/python -m benchmarks.store_sink $(ARGS)

bench-messages: setup ## Kafka, RabbitMQ, MQTT and webhooks beside their plain clients (ARGS="--systems mqtt")
	@$(BIN)/python -m benchmarks.message_clients $(ARGS)

bench-amazon: setup ## Kinesis and DynamoDB beside botocore alone (ARGS="--kinesis http://HOST:PORT --dynamodb http://HOST:PORT")
	@$(BIN)/python -m benchmarks.amazon $(ARGS)
bench-versioned-sinks: setup ## rows of Cassandra and documents of OpenSearch beside their clients alone (ARGS="--cassandra HOST:PORT --opensearch HOST:PORT")
	@$(BIN)/python -m benchmarks.versioned_sinks $(ARGS)

bench-query: setup ## queries over 1M keys beside a running job
	@$(BIN)/python -m benchmarks.state_query $(ARGS)

bench-large-state: setup ## 3 GiB of text dumped, saved, rescaled and restored, and the memory that takes
	@$(BIN)/python -m benchmarks.large_state $(ARGS)

bench-learned-state: setup ## models per key that learn, beside values that are set, 1M keys
	@$(BIN)/python -m benchmarks.learned_state $(ARGS)

soak: setup ## one hour of data and commands; fails when memory, disk, open files or times grow (ARGS="--seconds 600")
	@$(BIN)/python -m benchmarks.soak $(ARGS)

chaos: setup ## some 250 kills of jobs, managers and brokers, under data and commands; 100 replays of a cut; and properties
	@PENSTOCK_CHAOS_RESULTS=$(CURDIR)/docs/chaos $(BIN)/python -m pytest tests/unit tests/system tests/integration tests/crash -m chaos --timeout=3600 $(ARGS)
	@$(BIN)/python tests/unit/reliability.py
	@$(if $(ARGS),,$(MAKE) properties)

reliability: setup ## RELIABILITY.md from the results in docs/chaos
	@$(BIN)/python tests/unit/reliability.py

# With ARGS the results of a part replace those of before; without, all are new.
conformance: setup ## every connector held to the conformance kit, and the tables in docs/connectors.md from that
	@$(if $(ARGS),,rm -f docs/connectors/conformance.jsonl)
	@PENSTOCK_CONFORMANCE_RESULTS=$(CURDIR)/docs/connectors/conformance.jsonl $(BIN)/python -m pytest tests/system -k conform -v $(ARGS)
	@$(BIN)/python tests/unit/conformance_page.py

rooms: setup ## the picture of the rooms in ARCHITECTURE.md, from what they import
	@$(BIN)/python scripts/draw_rooms.py

properties: setup ## the property tests of tests/unit, with thirty times the examples that make test tries
	@$(BIN)/python -m pytest tests/unit -m hypothesis -n 2 --hypothesis-profile=chaos --timeout=3600 $(ARGS)

first-contact: setup ## pip install into a new environment, serve, and how soon the demo has figures
	@$(BIN)/python -m pytest tests/system/test_first_contact.py -m chaos -s -q $(ARGS)

clean: ## remove .venv and caches
	@rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
