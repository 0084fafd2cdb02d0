data/train.parquet: data.py task/@NAME@/actions.json
	$(PYTHON) data.py data/train.parquet

build/model: data/train.parquet learn.toml task/@NAME@/schema.json task/@NAME@/actions.json
	rm -rf $@
	mkdir -p build
	scorer learn train data/train.parquet --task task/@NAME@ --config learn.toml --output $@
