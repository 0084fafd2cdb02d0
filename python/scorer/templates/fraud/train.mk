data/train.parquet: data.py
	$(PYTHON) data.py data/train.parquet

build/model: data/train.parquet learn.toml task/@NAME@/schema.json
	rm -rf $@
	mkdir -p build
	scorer learn fraud train data/train.parquet --task task/@NAME@ --config learn.toml --output $@
