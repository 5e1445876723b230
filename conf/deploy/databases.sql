-- Databases beside the ledger's, in one server.
CREATE DATABASE mlflow;
CREATE DATABASE prefect;
